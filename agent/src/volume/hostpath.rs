//! hostPath volumes (VOL-11): a path of the node's own, checked to be what the pod expects.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, OpenOptionsExt as _},
    path::Path,
};

use k8s_openapi::api::core::v1::HostPathVolumeSource;

use super::Fault;

pub(super) fn set_up(source: &HostPathVolumeSource) -> Result<(), Fault> {
    let path = source.path.as_str();
    if path.split('/').any(|part| part == "..") {
        return Err(format!("invalid HostPath `{path}`: must not contain '..'"));
    }
    let wanted = source.type_.as_deref().unwrap_or_default();
    let make: Option<fn(&Path) -> io::Result<()>> = match wanted {
        "DirectoryOrCreate" => Some(make_folder),
        "FileOrCreate" => Some(make_file),
        _ => None,
    };
    if let Some(make) = make
        && !Path::new(path).exists()
    {
        return make(Path::new(path)).map_err(|error| format!("{path}: {error}"));
    }
    let (kind, words) = match wanted {
        "" => return Ok(()),
        "DirectoryOrCreate" | "Directory" => ("Directory", "directory"),
        "FileOrCreate" | "File" => ("File", "file"),
        "Socket" => ("Socket", "socket file"),
        "CharDevice" => ("CharDevice", "character device"),
        "BlockDevice" => ("BlockDevice", "block device"),
        other => return Err(format!("{other} is an invalid volume type")),
    };
    match kind_of(path) {
        Ok(found) if found == kind => Ok(()),
        Ok(found) => Err(format!(
            "hostPath type check failed: {path} is not a {words}, it's a {found}"
        )),
        Err(why) => Err(format!(
            "hostPath type check failed, {path} is not a {words}, unable to determine its type: \
             {why}"
        )),
    }
}

/// What stands at the path, links followed, in the words of the API.
fn kind_of(path: &str) -> Result<&'static str, Fault> {
    let kind = match fs::metadata(path) {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(format!("path {path:?} does not exist"));
        }
        Err(error) => return Err(error.to_string()),
    };
    if kind.is_dir() {
        Ok("Directory")
    } else if kind.is_file() {
        Ok("File")
    } else if kind.is_socket() {
        Ok("Socket")
    } else if kind.is_char_device() {
        Ok("CharDevice")
    } else if kind.is_block_device() {
        Ok("BlockDevice")
    } else {
        Err("only recognise file, directory, socket, block device and character device".to_owned())
    }
}

fn make_folder(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(path)
}

/// Its folder must be there.
fn make_file(path: &Path) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    let options = options.write(true).create(true).truncate(false);
    options.mode(0o644).open(path).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::os::unix::net::UnixListener;

    fn check(path: &Path, kind: &str) -> Result<(), Fault> {
        set_up(&HostPathVolumeSource {
            path: path.to_string_lossy().into_owned(),
            type_: Some(kind.to_owned()),
        })
    }

    #[rstest]
    #[case("dir", "", None)]
    #[case("none", "", None)]
    #[case("dir", "Directory", None)]
    #[case("dir", "DirectoryOrCreate", None)]
    #[case("file", "File", None)]
    #[case("file", "FileOrCreate", None)]
    #[case("socket", "Socket", None)]
    #[case("/dev/null", "CharDevice", None)]
    #[case(
        "file",
        "Directory",
        Some("hostPath type check failed: PATH is not a directory, it's a File")
    )]
    #[case(
        "file",
        "DirectoryOrCreate",
        Some("hostPath type check failed: PATH is not a directory, it's a File")
    )]
    #[case(
        "dir",
        "File",
        Some("hostPath type check failed: PATH is not a file, it's a Directory")
    )]
    #[case(
        "dir",
        "Socket",
        Some("hostPath type check failed: PATH is not a socket file, it's a Directory")
    )]
    #[case(
        "socket",
        "CharDevice",
        Some("hostPath type check failed: PATH is not a character device, it's a Socket")
    )]
    #[case(
        "/dev/null",
        "BlockDevice",
        Some("hostPath type check failed: PATH is not a block device, it's a CharDevice")
    )]
    #[case(
        "none",
        "Directory",
        Some(
            "hostPath type check failed, PATH is not a directory, unable to determine its type: path \"PATH\" does not exist"
        )
    )]
    #[case("dir/../x", "", Some("invalid HostPath `PATH`: must not contain '..'"))]
    #[case("dir", "Tape", Some("Tape is an invalid volume type"))]
    fn checks_what_stands_at_the_path(
        #[case] name: &str,
        #[case] kind: &str,
        #[case] message: Option<&str>,
    ) {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("dir")).unwrap();
        fs::write(root.path().join("file"), "").unwrap();
        let _socket = UnixListener::bind(root.path().join("socket")).unwrap();
        let path = root.path().join(name);
        let expected = message.map(|text| text.replace("PATH", &path.to_string_lossy()));
        assert_eq!(check(&path, kind).err(), expected);
    }

    #[test]
    fn makes_what_is_missing() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("a/b");
        check(&folder, "DirectoryOrCreate").unwrap();
        assert!(folder.is_dir());
        check(&folder.join("file"), "FileOrCreate").unwrap();
        assert!(folder.join("file").is_file());
        let message = check(&root.path().join("c/file"), "FileOrCreate").unwrap_err();
        assert!(
            message.ends_with("No such file or directory (os error 2)"),
            "{message}"
        );
    }
}
