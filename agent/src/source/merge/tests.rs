use k8s_openapi::api::core::v1::{Container, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use proptest::prelude::*;

use super::*;

const SOURCE: SourceKind = SourceKind::File;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn pod(uid: &str, name: &str, image: &str) -> PodObject {
    PodObject {
        metadata: ObjectMeta {
            uid: Some(uid.to_owned()),
            name: Some(name.to_owned()),
            namespace: Some("default".to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers: vec![Container {
                name: "c".to_owned(),
                image: Some(image.to_owned()),
                ..Container::default()
            }],
            ..PodSpec::default()
        }),
        ..PodObject::default()
    }
}

/// Operations as text: `ADD a b`.
fn said(merged: &Merged) -> Vec<String> {
    merged
        .updates
        .iter()
        .map(|update| {
            let uids = update.pods.iter().map(|pod| format!(" {}", pod.uid()));
            format!("{}{}", update.op, uids.collect::<String>())
        })
        .collect()
}

#[test]
fn a_first_set_is_added_and_an_empty_one_says_that_the_source_is_ready() {
    let mut merge = Merge::default();
    let first = merge.apply(SOURCE, vec![pod("a", "a", "i"), pod("b", "b", "i")], at(1));
    assert_eq!(said(&first), ["ADD a b"]);
    assert_eq!(said(&merge.apply(SourceKind::Http, vec![], at(2))), ["ADD"]);
    assert!(
        merge
            .apply(SourceKind::Http, vec![], at(3))
            .updates
            .is_empty()
    );
    assert!(merge.seen().eq([SourceKind::File, SourceKind::Http]));
}

#[test]
fn removes_come_before_adds_and_adds_before_updates() {
    let mut merge = Merge::default();
    merge.apply(SOURCE, vec![pod("a", "a", "i"), pod("b", "b", "i")], at(1));
    let next = merge.apply(SOURCE, vec![pod("b", "b", "j"), pod("c", "c", "i")], at(2));
    assert_eq!(said(&next), ["REMOVE a", "ADD c", "UPDATE b"]);
}

#[test]
fn an_equal_set_says_nothing() {
    let mut merge = Merge::default();
    merge.apply(SOURCE, vec![pod("a", "a", "i")], at(1));
    assert!(
        merge
            .apply(SOURCE, vec![pod("a", "a", "i")], at(2))
            .updates
            .is_empty()
    );
}

#[test]
fn a_changed_pod_keeps_the_time_when_it_was_first_seen() {
    let mut merge = Merge::default();
    merge.apply(SOURCE, vec![pod("a", "a", "i")], at(1));
    let next = merge.apply(SOURCE, vec![pod("a", "a", "j")], at(2));
    let annotations = next.updates[0].pods[0]
        .metadata()
        .annotations
        .clone()
        .unwrap();
    assert_eq!(annotations[CONFIG_SEEN], "1970-01-01T00:00:01Z");
    assert_eq!(annotations[CONFIG_SOURCE], "file");
}

#[test]
fn a_status_alone_is_reconciled() {
    let mut merge = Merge::default();
    merge.apply(SOURCE, vec![pod("a", "a", "i")], at(1));
    let mut changed = pod("a", "a", "i");
    changed.status = Some(PodStatus {
        phase: Some("Running".to_owned()),
        ..PodStatus::default()
    });
    assert_eq!(
        said(&merge.apply(SOURCE, vec![changed], at(2))),
        ["RECONCILE a"]
    );
}

#[test]
fn a_change_of_a_pod_that_is_being_deleted_is_a_delete() {
    let mut merge = Merge::default();
    merge.apply(SOURCE, vec![pod("a", "a", "i")], at(1));
    let mut deleted = pod("a", "a", "i");
    deleted.metadata.deletion_timestamp = Some(Time(at(9)));
    assert_eq!(
        said(&merge.apply(SOURCE, vec![deleted], at(2))),
        ["DELETE a"]
    );
}

#[test]
fn labels_and_annotations_count_but_the_agent_s_own_do_not() {
    let with = |name: &str, value: &str| {
        let mut object = pod("a", "a", "i");
        object.metadata.annotations = Some([(name.to_owned(), value.to_owned())].into());
        object
    };
    let mut merge = Merge::default();
    merge.apply(SOURCE, vec![with("x", "1")], at(1));
    assert_eq!(
        said(&merge.apply(SOURCE, vec![with("x", "2")], at(2))),
        ["UPDATE a"]
    );
    let mut own = with("x", "2");
    let annotations = own.metadata.annotations.as_mut().unwrap();
    annotations.insert(CONFIG_SEEN.to_owned(), "later".to_owned());
    assert!(merge.apply(SOURCE, vec![own], at(3)).updates.is_empty());
}

#[test]
fn of_two_pods_with_one_name_the_first_stays() {
    let mut merge = Merge::default();
    let merged = merge.apply(
        SOURCE,
        vec![pod("a", "same", "i"), pod("b", "same", "i")],
        at(1),
    );
    assert_eq!(said(&merged), ["ADD a"]);
    assert_eq!(merged.doubles[0].uid().as_str(), "b");
}

#[test]
fn the_same_uid_in_another_source_is_another_pod() {
    let mut merge = Merge::default();
    merge.apply(SourceKind::File, vec![pod("a", "a", "i")], at(1));
    let other = merge.apply(SourceKind::Http, vec![pod("a", "a", "i")], at(1));
    assert_eq!(said(&other), ["ADD a"]);
}

fn any_set() -> impl Strategy<Value = Vec<PodObject>> {
    let status = prop_oneof![Just(None), Just(Some("Running")), Just(Some("Pending"))];
    let one = (0..6_u8, 0..3_u8, status, any::<bool>());
    proptest::collection::btree_map(0..6_u8, one, 0..6).prop_map(|set| {
        set.into_iter()
            .map(|(uid, (_, image, phase, is_deleted))| {
                let mut object = pod(&format!("u{uid}"), &format!("n{uid}"), &format!("i{image}"));
                object.status = phase.map(|phase| PodStatus {
                    phase: Some(phase.to_owned()),
                    ..PodStatus::default()
                });
                object.metadata.deletion_timestamp = is_deleted.then(|| Time(at(5)));
                object
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn the_operations_turn_the_old_set_into_the_new_one(
        sets in proptest::collection::vec(any_set(), 1..6)
    ) {
        let mut merge = Merge::default();
        let mut followed: BTreeMap<String, Pod> = BTreeMap::new();
        for (step, set) in sets.into_iter().enumerate() {
            let now = at(i64::try_from(step).unwrap());
            let merged = merge.apply(SOURCE, set.clone(), now);
            for update in merged.updates {
                for pod in update.pods {
                    let uid = pod.uid().as_str().to_owned();
                    match update.op {
                        Op::Add => prop_assert!(followed.insert(uid, pod).is_none()),
                        Op::Remove => prop_assert!(followed.remove(&uid).is_some()),
                        Op::Update | Op::Reconcile | Op::Delete => {
                            prop_assert!(followed.insert(uid, pod).is_some());
                        }
                    }
                }
            }
            prop_assert_eq!(followed.len(), set.len());
            for object in set {
                let pod = &followed[object.metadata.uid.as_deref().unwrap()];
                prop_assert_eq!(&pod.object().spec, &object.spec);
                prop_assert_eq!(&pod.object().status, &object.status);
                prop_assert_eq!(
                    &pod.metadata().deletion_timestamp,
                    &object.metadata.deletion_timestamp
                );
            }
        }
    }
}
