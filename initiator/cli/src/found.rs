//! What lies at a path that was to be something else.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use capstan_nvme_proto::text::Shown;

/// What is at `path`, in words.
pub(super) fn found_at(path: &Path) -> String {
    match fs::metadata(path) {
        Ok(found) => {
            let kind = found.file_type();
            let what = if kind.is_dir() {
                "a folder"
            } else if kind.is_file() {
                "a file"
            } else if kind.is_block_device() {
                "a block device"
            } else if kind.is_char_device() {
                "a character device"
            } else if kind.is_fifo() {
                "a named pipe"
            } else {
                "a socket"
            };
            format!("it is {what}")
        }
        Err(error) if error.kind() == ErrorKind::NotFound => match fs::read_link(path) {
            Ok(to) => format!(
                "it is a link to {}, and nothing is there",
                Shown(&to.to_string_lossy())
            ),
            Err(_) => "it is not there".to_owned(),
        },
        Err(error) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::path::Path;

    use nix::sys::stat::Mode;

    use super::found_at;

    #[test]
    fn each_kind_has_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let [pipe, socket, link, file] =
            ["pipe", "socket", "link", "file"].map(|name| folder.path().join(name));
        nix::unistd::mkfifo(&pipe, Mode::S_IRUSR).unwrap();
        let _socket = UnixListener::bind(&socket).unwrap();
        symlink("absent", &link).unwrap();
        std::fs::write(&file, "").unwrap();
        for (path, words) in [
            (folder.path(), "it is a folder"),
            (&file, "it is a file"),
            (&pipe, "it is a named pipe"),
            (&socket, "it is a socket"),
            (Path::new("/dev/null"), "it is a character device"),
            (&link, "it is a link to absent, and nothing is there"),
            (&folder.path().join("absent"), "it is not there"),
        ] {
            assert_eq!(found_at(path), words);
        }
    }
}
