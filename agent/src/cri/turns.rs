//! One call at a time for each container.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

use crate::types::id::ContainerId;

/// Who is at it, by container. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns(Arc<Mutex<HashMap<ContainerId, Weak<Turn<()>>>>>);

impl Turns {
    /// Waits until nobody else is at this container; the turn ends with what is returned.
    pub(super) async fn take(&self, container: &ContainerId) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            turns.retain(|_, turn| turn.strong_count() > 0);
            turns
                .get(container)
                .and_then(Weak::upgrade)
                .unwrap_or_else(|| {
                    let turn = Arc::new(Turn::new(()));
                    turns.insert(container.clone(), Arc::downgrade(&turn));
                    turn
                })
        };
        turn.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_second_caller_waits_for_the_first_and_others_do_not() {
        let turns = Turns::default();
        let (one, other) = (ContainerId::from("one"), ContainerId::from("other"));
        let first = turns.take(&one).await;
        let mut second = std::pin::pin!(turns.take(&one));
        assert!(futures::poll!(second.as_mut()).is_pending());
        drop(turns.take(&other).await);
        drop(first);
        drop(second.await);
        // Whom nobody is at is forgotten with the next call.
        let _last = turns.take(&one).await;
        let known: Vec<_> = turns.0.lock().expect("no panic").keys().cloned().collect();
        assert_eq!(known, std::slice::from_ref(&one));
    }
}
