//! `skep run`: the kubelet's flags, its file and its drop-ins to one [`Config`].
//!
//! Flags win over drop-ins, drop-ins over the file, the file over defaults (CFG-10).

use std::{ffi::OsString, path::Path};

pub use super::Host;
use super::{
    Config, Strictness, dropin, file, flags,
    settings::Settings,
    table::{Defaults, Verdict},
    validate::{self, Mistakes},
    value::{Value, parse_bool},
};

/// The release whose behaviour is followed; kubeadm reads it off `--version`.
pub const KUBERNETES_VERSION: &str = "v1.37.2";

/// What the command line asks for.
#[derive(Debug)]
pub enum Parsed {
    /// Run with this; the warnings are for the log, one line each.
    Config(Box<Config>, Vec<String>),
    /// Print this and leave with success.
    Print(String),
}

/// Reads the arguments behind `skep run` (or `kubelet`) and the files that they name. The error has
/// every mistake of the stage that failed: reading, or checking.
pub fn parse(args: &[OsString], host: &Host) -> Result<Parsed, Mistakes> {
    let given = flags::parse(args);
    let mut mistakes: Vec<String> = given
        .mistakes
        .iter()
        .map(|line| format!("failed to parse kubelet flag: {line}"))
        .collect();
    if let Some(name) = given.positional.first().filter(|_| mistakes.is_empty()) {
        mistakes.push(format!("unknown command {name}"));
    }
    if mistakes.is_empty() {
        if given.is_on("help") {
            return Ok(Parsed::Print(flags::usage()));
        }
        if let Some((_, Value::Text(text))) = given.values.get("version") {
            match version(text) {
                Ok(Some(text)) => return Ok(Parsed::Print(text)),
                Ok(None) => {}
                Err(mistake) => mistakes.push(mistake),
            }
        }
    }
    let mut warnings: Vec<String> = flags::deprecations(&given).collect();

    let main = given.text("config").map(Path::new);
    let mut settings = Settings::new(match main {
        Some(_) => Defaults::OfFile,
        None => Defaults::Bare,
    });
    let mut take = |(wrong, said): (Vec<String>, Vec<String>)| {
        mistakes.extend(wrong);
        warnings.extend(said);
    };
    if let Some(path) = main {
        take(file::load(&mut settings, path));
    }
    if let Some(folder) = given.text("config-dir") {
        take(dropin::merge(&mut settings, Path::new(folder)));
    }
    if let Some(mistakes) = Mistakes::of(mistakes) {
        return Err(mistakes);
    }
    for (row, value) in given.values.into_values() {
        if row.verdict != Verdict::Action {
            settings.set_flag(row, value);
        }
    }
    let (config, said) = validate::validate(&settings, Strictness::Warn, host)?;
    warnings.extend(said);
    Ok(Parsed::Config(Box::new(config), warnings))
}

/// None where no version is asked for after all.
fn version(text: &str) -> Result<Option<String>, String> {
    if text == "raw" {
        return Ok(Some(format!(
            "Version {{ kubernetes: {KUBERNETES_VERSION:?}, skep: {:?} }}\n",
            env!("CARGO_PKG_VERSION")
        )));
    }
    match parse_bool(text) {
        Some(true) => Ok(Some(format!("Kubernetes {KUBERNETES_VERSION}\n"))),
        Some(false) => Ok(None),
        None => Err(format!(
            "failed to parse kubelet flag: invalid argument {text:?} for \"--version\" flag: \
             expected true, false or raw"
        )),
    }
}

#[cfg(test)]
mod tests;
