//! `--config-dir`: `*.conf` files merged over the file, in the order of their paths (CFG-11).

use std::path::Path;

use super::{
    file::{self, Role},
    settings::Settings,
};

/// A folder with more files than this is not a folder of drop-ins.
const MAX_FILES: usize = 1000;

/// Merges every drop-in. Mistakes and warnings are one line each, with the file.
pub(super) fn merge(settings: &mut Settings, folder: &Path) -> (Vec<String>, Vec<String>) {
    let (mut mistakes, mut warnings) = (Vec::new(), Vec::new());
    let mut count = 0;
    for entry in walkdir::WalkDir::new(folder).sort_by_file_name() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                let path = error.path().unwrap_or(folder).display().to_string();
                let reason = error
                    .into_io_error()
                    .map_or_else(|| "a loop of links".to_owned(), |error| error.to_string());
                mistakes.push(format!(
                    "{path}: cannot read the folder of --config-dir: {reason}"
                ));
                break;
            }
        };
        let is_drop_in = !entry.file_type().is_dir()
            && entry.path().extension().is_some_and(|name| name == "conf");
        if !is_drop_in {
            continue;
        }
        count += 1;
        if count > MAX_FILES {
            mistakes.push(format!(
                "{}: expected at most {MAX_FILES} files in the folder of --config-dir",
                folder.display()
            ));
            break;
        }
        let document = file::read(entry.path(), Role::DropIn);
        mistakes.extend(document.mistakes);
        warnings.extend(document.warnings);
        settings.merge(document.layer, &document.nulls, entry.path());
    }
    (mistakes, warnings)
}
