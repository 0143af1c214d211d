//! The life cycle of a pod's worker: syncing, terminating, terminated, finished (WORK-01). Pure.

use super::mailbox::Stop;

/// Strictly one way, down the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
pub enum Phase {
    /// What runs is brought to what is wanted.
    #[strum(serialize = "sync")]
    Syncing,
    /// Containers are being stopped.
    #[strum(serialize = "terminating")]
    Terminating { stop: Stop, wanted: Wanted },
    /// No container runs; what is left of the pod on the node is being removed.
    #[strum(serialize = "terminated")]
    Cleaning { wanted: Wanted },
    /// The pod ended by itself (its containers are done) and is still wanted: it stays, with its
    /// status, until nobody wants it.
    #[strum(serialize = "terminated")]
    Ended,
    /// Nothing is left to do: the worker can be forgotten.
    #[strum(serialize = "terminated")]
    Finished,
}

/// Whether the sources still want a pod that is being taken down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    Yes,
    No,
}

/// What has happened to the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// The sources do not want the pod any more.
    Stop(Stop),
    /// A sync found that the pod has ended by itself.
    EndedByItself,
    /// No container of the pod runs any more.
    Stopped,
    /// Volumes, folders and cgroups of the pod are gone.
    Cleaned,
}

impl Phase {
    pub fn next(self, input: Input) -> Self {
        match (self, input) {
            (Self::Syncing, Input::Stop(stop)) => Self::Terminating {
                stop,
                wanted: Wanted::No,
            },
            (Self::Syncing, Input::EndedByItself) => Self::Terminating {
                stop: Stop { grace: None },
                wanted: Wanted::Yes,
            },
            (Self::Terminating { stop, .. }, Input::Stop(new)) => Self::Terminating {
                stop: stop.merge(new),
                wanted: Wanted::No,
            },
            (Self::Terminating { wanted, .. }, Input::Stopped) => Self::Cleaning { wanted },
            (Self::Cleaning { .. }, Input::Stop(_)) => Self::Cleaning { wanted: Wanted::No },
            (
                Self::Cleaning {
                    wanted: Wanted::Yes,
                },
                Input::Cleaned,
            ) => Self::Ended,
            (Self::Cleaning { wanted: Wanted::No }, Input::Cleaned)
            | (Self::Ended, Input::Stop(_)) => Self::Finished,
            // What comes late or twice changes nothing.
            (same, Input::Stop(_) | Input::EndedByItself | Input::Stopped | Input::Cleaned) => same,
        }
    }

    /// No container of the pod is started from here on.
    pub fn is_terminating(self) -> bool {
        match self {
            Self::Syncing => false,
            Self::Terminating { .. } | Self::Cleaning { .. } | Self::Ended | Self::Finished => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STOP: Stop = Stop { grace: None };

    #[test]
    fn a_removed_pod_is_stopped_cleaned_and_forgotten() {
        let phase = Phase::Syncing.next(Input::Stop(STOP)).next(Input::Stopped);
        assert_eq!(phase, Phase::Cleaning { wanted: Wanted::No });
        assert_eq!(phase.next(Input::Cleaned), Phase::Finished);
    }

    #[test]
    fn a_pod_that_ended_by_itself_stays_until_nobody_wants_it() {
        let phase = Phase::Syncing
            .next(Input::EndedByItself)
            .next(Input::Stopped);
        let phase = phase.next(Input::Cleaned);
        assert_eq!(phase, Phase::Ended);
        assert_eq!(phase.next(Input::Stop(STOP)), Phase::Finished);
    }

    fn rank(phase: Phase) -> u8 {
        match phase {
            Phase::Syncing => 0,
            Phase::Terminating { .. } => 1,
            Phase::Cleaning { .. } => 2,
            Phase::Ended => 3,
            Phase::Finished => 4,
        }
    }

    proptest! {
        #[test]
        fn never_goes_back(inputs in prop::collection::vec(0_u8..4, 0..20)) {
            let mut phase = Phase::Syncing;
            for input in inputs {
                let input = match input {
                    0 => Input::Stop(STOP),
                    1 => Input::EndedByItself,
                    2 => Input::Stopped,
                    _ => Input::Cleaned,
                };
                let next = phase.next(input);
                prop_assert!(rank(next) >= rank(phase));
                phase = next;
            }
        }
    }
}
