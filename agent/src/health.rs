//! How each part of the agent fares, for `/healthz?verbose` and `/readyz`.

use std::sync::{Arc, Mutex, PoisonError};

use indexmap::IndexMap;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::types::clock;

/// The state of one part, as an operator reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct State {
    pub grade: Grade,
    /// One line: what is so, and why.
    pub text: String,
    pub since: Timestamp,
    /// When the part last spoke, with news or without.
    pub told_at: Timestamp,
}

/// The sync loop turns every two seconds at least; one that has not for this long is stuck
/// (LOOP-12).
const STUCK_AFTER: SignedDuration = SignedDuration::from_mins(5);

impl State {
    /// Bad, if the part ought to speak all the time and has long been silent.
    fn watched(self, now: Timestamp) -> Self {
        if now.duration_since(self.told_at) > STUCK_AFTER {
            let text = format!("sync Loop took longer than expected; {}", self.text);
            Self {
                grade: Grade::Bad,
                text,
                ..self
            }
        } else {
            self
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    Good,
    /// Works, but not as well as it could: a worse PLEG mode, say.
    Degraded,
    /// Keeps the node from being ready.
    Bad,
}

/// The parts that report; the set is closed so that `/readyz` can name what has not yet spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum Part {
    Runtime,
    Pleg,
    Sync,
    Sources,
}

/// One board for the whole agent; each part writes its own line. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Board(Arc<Mutex<IndexMap<&'static str, State>>>);

impl Board {
    /// `since` moves only when the grade or the text changes.
    pub fn set(&self, part: Part, grade: Grade, text: impl Into<String>) {
        let (text, now) = (text.into(), clock::wall_now());
        let mut states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let name: &'static str = part.into();
        match states.get_mut(name) {
            Some(state) if state.grade == grade && state.text == text => state.told_at = now,
            Some(_) | None => {
                let state = State {
                    grade,
                    text,
                    since: now,
                    told_at: now,
                };
                states.insert(name, state);
            }
        }
    }

    /// Every part with its state; none for a part that has not reported yet.
    pub fn read(&self) -> Vec<(&'static str, Option<State>)> {
        let now = clock::wall_now();
        let states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        <Part as strum::VariantArray>::VARIANTS
            .iter()
            .map(|part| {
                let name: &'static str = part.into();
                let state = states.get(name).cloned();
                (
                    name,
                    state.map(|state| {
                        if *part == Part::Sync {
                            state.watched(now)
                        } else {
                            state
                        }
                    }),
                )
            })
            .collect()
    }

    /// Every part has reported and none is bad.
    pub fn is_ready(&self) -> bool {
        self.read().iter().all(|(_, state)| {
            state
                .as_ref()
                .is_some_and(|state| state.grade != Grade::Bad)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sync_loop_that_stopped_turning_is_bad() {
        let board = Board::default();
        board.set(Part::Sync, Grade::Good, "4 pods");
        let state = |board: &Board| board.read()[2].1.clone().expect("it has spoken");
        assert_eq!(state(&board).grade, Grade::Good);
        let old = clock::wall_now() - SignedDuration::from_mins(6);
        if let Some(state) = board.0.lock().unwrap().get_mut("sync") {
            state.told_at = old;
        }
        assert_eq!(state(&board).grade, Grade::Bad);
        assert!(
            state(&board)
                .text
                .starts_with("sync Loop took longer than expected")
        );
    }
}
