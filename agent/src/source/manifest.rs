//! From the bytes of a manifest to a pod that can run, or to what is wrong with it. Pure.
//!
//! The one path that every static pod takes: decode, fields that are not built, the API's
//! defaults, the static pod's own, validation. All problems of a manifest are found in one go.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use k8s_openapi::api::core::v1::Pod as PodObject;
use serde_json::Value;

use super::{
    decode::{self, Decoded},
    defaults, fields,
    problem::Problem,
    validate,
};
use crate::{config::Strictness, types::pod::SourceKind};

/// Where a manifest was found; it goes into the pod's uid.
#[derive(Clone, Copy, Debug)]
pub(super) enum Origin<'a> {
    File(&'a Path),
    Url(&'a str),
}

impl Origin<'_> {
    pub(super) fn source(self) -> SourceKind {
        match self {
            Self::File(_) => SourceKind::File,
            Self::Url(_) => SourceKind::Http,
        }
    }
}

/// Pods of one manifest, ready to run, and what upstream would have passed over in silence.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    pub pods: Vec<PodObject>,
    pub warnings: Vec<Problem>,
}

/// How pods are read: for which node, and how strictly.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    pub node_name: String,
    pub strictness: Strictness,
}

impl Rules {
    /// A manifest with one Pod.
    pub(super) fn load_pod(
        &self,
        bytes: &[u8],
        origin: Origin<'_>,
    ) -> Result<Loaded, Vec<Problem>> {
        contained(|| {
            let document = decode::read_document(bytes, self.strictness).map_err(|p| vec![p])?;
            let mut loaded = Loaded {
                pods: Vec::new(),
                warnings: document.warnings,
            };
            self.add(&mut loaded, document.value, origin)?;
            Ok(loaded)
        })
    }

    /// A Pod or a PodList, as only a URL may give.
    pub(super) fn load_pods(
        &self,
        bytes: &[u8],
        origin: Origin<'_>,
    ) -> Result<Loaded, Vec<Problem>> {
        contained(|| {
            let document = decode::read_document(bytes, self.strictness).map_err(|p| vec![p])?;
            let mut loaded = Loaded {
                pods: Vec::new(),
                warnings: document.warnings,
            };
            let is_list = decode::kind_of(&document.value) == Ok(("v1", "PodList"));
            if !is_list {
                self.add(&mut loaded, document.value, origin)?;
                return Ok(loaded);
            }
            let items = match document.value {
                Value::Object(mut list) => list.remove("items"),
                Value::Null
                | Value::Bool(_)
                | Value::Number(_)
                | Value::String(_)
                | Value::Array(_) => None,
            };
            let items = match items {
                None | Some(Value::Null) => Vec::new(),
                Some(Value::Array(items)) => items,
                Some(other) => {
                    return Err(vec![Problem::invalid("items", other, "expected a list")]);
                }
            };
            for (index, mut item) in items.into_iter().enumerate() {
                // Items of a list need not repeat what the list says of them.
                if let Value::Object(item) = &mut item {
                    item.entry("apiVersion").or_insert_with(|| "v1".into());
                    item.entry("kind").or_insert_with(|| "Pod".into());
                }
                self.add(&mut loaded, item, origin)
                    .map_err(|problems| within(&format!("items[{index}]"), problems))?;
            }
            Ok(loaded)
        })
    }

    fn add(
        &self,
        loaded: &mut Loaded,
        value: Value,
        origin: Origin<'_>,
    ) -> Result<(), Vec<Problem>> {
        let (value, decoded) = decode::decode_pod(value, self.strictness)?;
        let Decoded {
            mut object,
            warnings,
        } = decoded;
        if object.metadata.name.as_deref().is_none_or(str::is_empty) {
            return Err(vec![Problem::required(
                "metadata.name",
                "name is needed for the pod",
            )]);
        }
        let mut problems = fields::check(&value);
        defaults::apply_api_defaults(&mut object);
        defaults::apply_static_defaults(&mut object, origin, &self.node_name);
        problems.extend(validate::validate(&object));
        if !problems.is_empty() {
            return Err(problems);
        }
        loaded.warnings.extend(warnings);
        loaded.pods.push(object);
        Ok(())
    }
}

fn within(parent: &str, problems: Vec<Problem>) -> Vec<Problem> {
    problems
        .into_iter()
        .map(|problem| {
            let field = match problem.field.as_str() {
                "" => parent.to_owned(),
                field => format!("{parent}.{field}"),
            };
            Problem::new(field, problem.message)
        })
        .collect()
}

/// A bug that a strange manifest lays bare must cost that manifest, not the agent: a node whose
/// agent dies of a file would die of it at each start.
fn contained(read: impl FnOnce() -> Result<Loaded, Vec<Problem>>) -> Result<Loaded, Vec<Problem>> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_panic| {
        Err(vec![Problem::of_file(
            "could not be read because of a bug in the agent: please report it with the file",
        )])
    })
}

#[cfg(test)]
mod tests;
