//! Which cgroup is whose: cgroup id -> pod or container, from the kernel's own tracking and from
//! the walk at start.

use std::collections::{HashMap, HashSet};

use crate::{
    host::hierarchy,
    types::id::{CgroupId, ContainerId, PodUid},
};

/// What a tracked cgroup stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Pod(PodUid),
    /// A container's, or a sandbox's pause container.
    Container {
        uid: PodUid,
        id: ContainerId,
    },
}

#[derive(Debug, Default)]
pub(super) struct Index {
    places: HashMap<CgroupId, Place>,
    cgroups: HashMap<ContainerId, CgroupId>,
    /// Not there any more, and nothing has told of their removal.
    lost: HashSet<CgroupId>,
}

impl Index {
    /// A cgroup was made under `parent`. Below a pod's cgroup every directory is a container's;
    /// elsewhere a name that is a pod's makes it one. Anything else (a QoS cgroup) is nothing.
    pub(super) fn made(&mut self, id: CgroupId, parent: CgroupId, name: &str) -> Option<&Place> {
        let place = match self.places.get(&parent) {
            Some(Place::Pod(uid)) => {
                let container = hierarchy::container_id(name)?;
                self.cgroups.insert(container.clone(), id);
                Place::Container {
                    uid: uid.clone(),
                    id: container,
                }
            }
            Some(Place::Container { .. }) => return None,
            None => Place::Pod(hierarchy::pod_uid(name)?),
        };
        self.places.insert(id, place);
        self.places.get(&id)
    }

    pub(super) fn place(&self, id: CgroupId) -> Option<&Place> {
        self.places.get(&id)
    }

    pub(super) fn cgroup_of(&self, container: &ContainerId) -> Option<CgroupId> {
        self.cgroups.get(container).copied()
    }

    /// A walk found only these of all that were made before it.
    pub(super) fn walked(&mut self, found: &HashSet<CgroupId>) {
        self.lost = self.places.keys().copied().collect();
        self.lost.retain(|id| !found.contains(id));
    }

    /// Forgets what the last walk did not find; to be called once no news from before it can come.
    pub(super) fn forget_lost(&mut self) -> Vec<(CgroupId, Place)> {
        std::mem::take(&mut self.lost)
            .into_iter()
            .filter_map(|id| Some((id, self.removed(id)?)))
            .collect()
    }

    pub(super) fn removed(&mut self, id: CgroupId) -> Option<Place> {
        let place = self.places.remove(&id)?;
        if let Place::Container { id: container, .. } = &place {
            // The name may be that of a newer cgroup by now.
            if self.cgroups.get(container) == Some(&id) {
                self.cgroups.remove(container);
            }
        }
        Some(place)
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_tree_from_pod_to_container_and_forgets_what_is_removed() {
        let mut index = Index::default();
        let (root, pod, container) = (CgroupId(1), CgroupId(2), CgroupId(3));
        assert_eq!(index.made(CgroupId(9), root, "burstable"), None);
        assert_eq!(
            index.made(pod, root, "podabc"),
            Some(&Place::Pod(PodUid::from("abc")))
        );
        let id = ContainerId::from("c0ffee");
        let place = Place::Container {
            uid: PodUid::from("abc"),
            id: id.clone(),
        };
        assert_eq!(index.made(container, pod, "c0ffee"), Some(&place));
        assert_eq!(index.made(CgroupId(4), container, "nested"), None);
        assert_eq!(index.cgroup_of(&id), Some(container));
        assert_eq!(index.removed(container), Some(place));
        assert_eq!(index.cgroup_of(&id), None);
    }
}
