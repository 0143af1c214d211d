//! `skep check`: the machine ([`super::check`]), or a manifest.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use super::{
    args::CheckArguments,
    check::{self, Settings},
    output::{self, Format},
};
use crate::{config::Strictness, host::proc, source};

/// Fails where the machine is not fit, or the manifest not good.
pub(super) async fn check(options: CheckArguments, root: PathBuf) -> anyhow::Result<ExitCode> {
    let CheckArguments {
        file,
        runtime_endpoint: endpoint,
        output,
    } = options;
    if let Some(file) = file {
        return manifest(&file, output.output);
    }
    let findings = check::machine(&Settings { endpoint, root }).await;
    output::show(output.output, &findings, || check::table(&findings))?;
    Ok(ExitCode::from(u8::from(!check::is_fit(&findings))))
}

/// As `skep up` would read it.
fn manifest(file: &Path, format: Format) -> anyhow::Result<ExitCode> {
    let path = std::path::absolute(file)?;
    let node = proc::hostname().trim().to_lowercase();
    match source::check_file(&path, &node, Strictness::Refuse) {
        Ok(pod) => {
            output::show(format, pod.object(), || {
                format!("{}: pod {} is good\n", file.display(), pod.key())
            })?;
            Ok(ExitCode::SUCCESS)
        }
        Err(problems) => {
            output::show(format, &problems, || {
                problems
                    .iter()
                    .map(|problem| format!("{}: {problem}\n", file.display()))
                    .collect()
            })?;
            Ok(ExitCode::FAILURE)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_good_manifest_succeeds_and_a_bad_one_fails() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pod.yaml");
        let good = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\n\
                    spec: {containers: [{name: a, image: i}]}\n";
        for (text, expected) in [
            (good.to_owned(), ExitCode::SUCCESS),
            (good.replace("image", "imago"), ExitCode::FAILURE),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(manifest(&path, Format::Table).unwrap(), expected);
        }
    }
}
