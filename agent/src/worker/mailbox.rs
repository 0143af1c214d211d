//! A worker's inbox: the last wish counts, and a wish to stop is never undone.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::Notify;

use crate::types::{clock::Mono, pod::Pod};

/// What the sources want of a pod.
#[derive(Clone, Debug)]
pub enum Desired {
    Run(Pod),
    Stop(Stop),
}

/// An order to stop: containers get their grace, then are killed; nothing is started any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop {
    /// Replaces the pod's own grace where it is shorter (WORK-05).
    pub grace: Option<Duration>,
}

/// What waits in the inbox.
#[derive(Clone, Debug, Default)]
pub(super) struct Letters {
    pub(super) desired: Option<Desired>,
    /// Something of the pod changed in the runtime, or its time has come.
    pub(super) kick: Option<Kick>,
}

/// A reason to look at the pod again. The earliest kernel event behind it is kept, for the metric of
/// how long it took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kick {
    pub kernel_at: Option<Mono>,
}

/// The writing end; the worker has the reading end.
#[derive(Clone, Debug, Default)]
pub struct Mailbox(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    letters: Mutex<Letters>,
    arrived: Notify,
}

impl Mailbox {
    pub fn want(&self, desired: Desired) {
        let mut letters = self.lock();
        letters.desired = Some(match (letters.desired.take(), desired) {
            (Some(Desired::Stop(old)), Desired::Stop(new)) => Desired::Stop(old.merge(new)),
            (Some(Desired::Stop(old)), Desired::Run(_)) => Desired::Stop(old),
            (Some(Desired::Run(_)) | None, new) => new,
        });
        drop(letters);
        self.0.arrived.notify_one();
    }

    pub fn kick(&self, kick: Kick) {
        let mut letters = self.lock();
        let earlier = letters.kick.unwrap_or_default().kernel_at;
        let kernel_at = match (earlier, kick.kernel_at) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        letters.kick = Some(Kick { kernel_at });
        drop(letters);
        self.0.arrived.notify_one();
    }

    /// Waits until there is something and takes it all. Cancel-safe: nothing is taken before it is
    /// returned.
    pub(super) async fn take(&self) -> Letters {
        loop {
            let letters = std::mem::take(&mut *self.lock());
            if letters.desired.is_some() || letters.kick.is_some() {
                return letters;
            }
            self.0.arrived.notified().await;
        }
    }

    /// A wish to stop waits to be taken.
    pub(super) fn has_stop(&self) -> bool {
        matches!(self.lock().desired, Some(Desired::Stop(_)))
    }

    /// Waits for a wish to stop and takes nothing. For the worker alone, as `take` is: two that wait
    /// would take each other's call.
    pub(super) async fn stop_came(&self) {
        while !self.has_stop() {
            self.0.arrived.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Letters> {
        self.0
            .letters
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stop {
    /// Grace only shrinks.
    pub fn merge(self, other: Self) -> Self {
        let grace = match (self.grace, other.grace) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        Self { grace }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_wish_to_stop_is_never_undone_and_its_grace_only_shrinks() {
        let mailbox = Mailbox::default();
        let seconds = |n| Some(Duration::from_secs(n));
        mailbox.want(Desired::Stop(Stop { grace: seconds(30) }));
        mailbox.want(Desired::Stop(Stop { grace: seconds(5) }));
        mailbox.want(Desired::Stop(Stop { grace: None }));
        let Some(Desired::Stop(stop)) = mailbox.take().await.desired else {
            panic!("a stop")
        };
        assert_eq!(stop.grace, seconds(5));
    }

    #[tokio::test]
    async fn many_kicks_are_one_with_the_earliest_kernel_event() {
        let mailbox = Mailbox::default();
        mailbox.kick(Kick {
            kernel_at: Some(Mono(9)),
        });
        mailbox.kick(Kick {
            kernel_at: Some(Mono(4)),
        });
        mailbox.kick(Kick::default());
        assert_eq!(
            mailbox.take().await.kick,
            Some(Kick {
                kernel_at: Some(Mono(4))
            })
        );
    }

    #[tokio::test]
    async fn waiting_for_a_stop_loses_no_other_letter() {
        let mailbox = Mailbox::default();
        mailbox.kick(Kick::default());
        {
            let stop = std::pin::pin!(mailbox.stop_came());
            assert!(futures::poll!(stop).is_pending());
        }
        assert_eq!(mailbox.take().await.kick, Some(Kick::default()));
        mailbox.want(Desired::Stop(Stop { grace: None }));
        mailbox.stop_came().await;
        assert!(mailbox.take().await.desired.is_some());
    }
}
