//! The configuration file: `KubeletConfiguration` v1beta1 in YAML or JSON, as `--config` and
//! `--config-dir` name it (CFG-07, CFG-11).
//!
//! Unknown and duplicate fields are warned about and passed over, as upstream's lenient decoding
//! does. Wrong types are mistakes, all told at once.

use std::{
    fs::{File, OpenOptions},
    io::Read as _,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use serde_json::Value as Json;
use serde_saphyr::DuplicateKeyPolicy;

use super::{
    settings::{Layer, Said, Settings},
    table,
    value::{Kind, Value},
};

/// A configuration is some kilobytes; what is larger is another file.
const MAX_BYTES: u64 = 1 << 20;

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const KIND: &str = "KubeletConfiguration";

/// What one file said.
#[derive(Debug, Default)]
pub(super) struct Document {
    pub(super) layer: Layer,
    /// Keys of maps that stand with null: a drop-in takes them away.
    pub(super) nulls: Vec<(&'static str, String)>,
    pub(super) mistakes: Vec<String>,
    pub(super) warnings: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Main,
    DropIn,
}

/// Reads the main file into the settings. Mistakes and warnings are one line each, with the file.
pub(super) fn load(settings: &mut Settings, path: &Path) -> (Vec<String>, Vec<String>) {
    let mut document = read(path, Role::Main);
    resolve_paths(&mut document.layer, path);
    settings.load(document.layer, path);
    let parallel = settings.optional_int("maxParallelImagePulls");
    if !settings.is_made("serializeImagePulls") && parallel.is_some_and(|count| count >= 2) {
        settings.set_by_file("serializeImagePulls", Value::Bool(false), path);
    }
    (document.mistakes, document.warnings)
}

/// Reads one file. Every line names it.
pub(super) fn read(path: &Path, role: Role) -> Document {
    let mut document = match read_text(path) {
        Ok(text) => decode(&text, role),
        Err(mistake) => Document {
            mistakes: vec![mistake],
            ..Document::default()
        },
    };
    for line in document.mistakes.iter_mut().chain(&mut document.warnings) {
        *line = format!("{}: {line}", path.display());
    }
    document
}

/// The text of a regular file. A FIFO or a device would block or never end, so neither is read.
fn read_text(path: &Path) -> Result<String, String> {
    let open = || -> std::io::Result<File> {
        let no_wait = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        OpenOptions::new()
            .read(true)
            .custom_flags(no_wait)
            .open(path)
    };
    let file = open().map_err(|error| format!("cannot open the configuration file: {error}"))?;
    let metadata = file
        .metadata()
        .map_err(|error| format!("cannot read the configuration file: {error}"))?;
    if !metadata.is_file() {
        let is = if metadata.is_dir() {
            "a folder"
        } else {
            "no regular file"
        };
        return Err(format!("expected a configuration file, this is {is}"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| format!("cannot read the configuration file: {error}"))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err("the configuration file is larger than 1 MiB".to_owned());
    }
    if bytes.is_empty() {
        return Err("the kubelet config file was empty".to_owned());
    }
    String::from_utf8(bytes).map_err(|_error| "the configuration file is not UTF-8".to_owned())
}

fn decode(text: &str, role: Role) -> Document {
    let mut document = Document::default();
    let json = match parse(text, DuplicateKeyPolicy::Error) {
        Ok(json) => json,
        Err(strict) => match parse(text, DuplicateKeyPolicy::LastWins) {
            Ok(json) => {
                document.warnings.push(format!(
                    "using lenient decoding as strict decoding failed: {strict}"
                ));
                json
            }
            Err(error) => {
                document
                    .mistakes
                    .push(format!("expected YAML or JSON: {error}"));
                return document;
            }
        },
    };
    let mut json = match json.as_slice() {
        [] => Json::Null,
        [only] => only.clone(),
        [first, ..] => {
            document.warnings.push(format!(
                "it holds {} documents: only the first is read",
                json.len()
            ));
            first.clone()
        }
    };
    let Some(map) = json.as_object_mut() else {
        document.mistakes.push(format!(
            "expected a map with apiVersion: {API_VERSION} and kind: {KIND}"
        ));
        return document;
    };
    for (name, expected) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        match map.remove(name) {
            Some(Json::String(text)) if text == expected => {}
            Some(other) => document
                .mistakes
                .push(format!("{name}: expected {expected}, found {other}")),
            None => document
                .mistakes
                .push(format!("{name} is missing: expected {expected}")),
        }
    }
    if document.mistakes.is_empty() {
        walk(&mut document, "", &json, role);
    }
    document
}

fn parse(text: &str, duplicate_keys: DuplicateKeyPolicy) -> Result<Vec<Json>, String> {
    let options = serde_saphyr::options! {
        duplicate_keys: duplicate_keys,
        legacy_octal_numbers: true,
        with_snippet: false,
    };
    serde_saphyr::from_multiple_with_options::<Json>(text, options).map_err(|error| {
        // One line, whatever the parser says.
        error
            .to_string()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    })
}

fn walk(document: &mut Document, path: &str, json: &Json, role: Role) {
    let Some(map) = json.as_object() else {
        document
            .mistakes
            .push(format!("{path}: expected a map, found {json}"));
        return;
    };
    for (name, value) in map {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        let row = table::rows().find(|row| row.field == Some(path.as_str()));
        if let Some((row, key)) = row.and_then(|row| Some((row, row.field?))) {
            read_field(document, row, key, value, role);
            continue;
        }
        let prefix = format!("{path}.");
        let children: Vec<_> = table::rows()
            .filter_map(|row| row.field)
            .filter(|field| field.starts_with(&prefix))
            .collect();
        if children.is_empty() {
            document
                .warnings
                .push(format!("unknown field {path:?} is passed over"));
        } else if value.is_null() {
            for field in children {
                document.layer.insert(field, Said::Default);
            }
        } else {
            walk(document, &path, value, role);
        }
    }
}

fn read_field(
    document: &mut Document,
    row: &table::Row,
    key: &'static str,
    value: &Json,
    role: Role,
) {
    if value.is_null() {
        document.layer.insert(key, Said::Default);
        return;
    }
    let mut value = value.clone();
    let is_map = matches!(
        row.kind,
        Kind::Pairs | Kind::Pair | Kind::Thresholds | Kind::Gates | Kind::Headers
    );
    if let (true, Role::DropIn, Some(map)) = (is_map, role, value.as_object_mut()) {
        map.retain(|name, value| {
            if value.is_null() {
                document.nulls.push((key, name.clone()));
            }
            !value.is_null()
        });
    }
    match row.kind.read(&value) {
        Ok(value) if value.is_zero() && !row.is_pointer => {
            document.layer.insert(key, Said::Default);
        }
        Ok(value) => {
            document.layer.insert(key, Said::Value(value));
        }
        Err(error) => document.mistakes.push(format!("{}: {error}", row.name())),
    }
}

/// Relative paths of the main file start at its folder; those of drop-ins and flags do not.
fn resolve_paths(layer: &mut Layer, file: &Path) {
    let folder = std::path::absolute(file)
        .ok()
        .and_then(|file| file.parent().map(Path::to_owned));
    let Some(folder) = folder else { return };
    for (key, said) in layer.iter_mut() {
        let is_path = table::by_key(key).is_some_and(|row| row.kind == Kind::Path);
        if let (true, Said::Value(Value::Text(text))) = (is_path, said)
            && !text.is_empty()
            && !Path::new(text.as_str()).is_absolute()
        {
            *text = clean(&folder.join(text.as_str()));
        }
    }
}

/// A path without `.` and `..`, by its text alone, as `filepath.Join` makes it.
pub(super) fn clean(path: &Path) -> String {
    use std::path::{Component, PathBuf};
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                clean.pop();
            }
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => {
                clean.push(component);
            }
        }
    }
    clean.to_string_lossy().into_owned()
}
