//! How each part of the agent fares, for `/healthz?verbose` and `/readyz`.

use std::sync::{Arc, Mutex, PoisonError};

use indexmap::IndexMap;
use jiff::Timestamp;
use serde::Serialize;

use crate::types::clock;

/// The state of one part, as an operator reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct State {
    pub grade: Grade,
    /// One line: what is so, and why.
    pub text: String,
    pub since: Timestamp,
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
        let text = text.into();
        let mut states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let name: &'static str = part.into();
        if states
            .get(name)
            .is_none_or(|old| old.grade != grade || old.text != text)
        {
            states.insert(
                name,
                State {
                    grade,
                    text,
                    since: clock::wall_now(),
                },
            );
        }
    }

    /// Every part with its state; none for a part that has not reported yet.
    pub fn read(&self) -> Vec<(&'static str, Option<State>)> {
        let states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        <Part as strum::VariantArray>::VARIANTS
            .iter()
            .map(|part| {
                let name: &'static str = part.into();
                (name, states.get(name).cloned())
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
