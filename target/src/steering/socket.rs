//! Where the control socket is, and its permissions: root may connect, the user of the target, and
//! the group `capstan`.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use nix::unistd::{Group, geteuid};

/// What systemd tells a service with `RuntimeDirectory=` (systemd.exec(5)).
const FOLDER_VARIABLE: &str = "RUNTIME_DIRECTORY";
/// What names the socket for both ends, unless an option does.
const VARIABLE: &str = "CAPSTAN_CONTROL_SOCKET";
/// The word for no socket.
pub(crate) const NONE: &str = "none";
/// Members may connect.
const GROUP: &str = "capstan";
const NAME: &str = "control.sock";

/// A socket that others can connect to; it goes with this.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) listener: UnixListener,
    path: PathBuf,
}

impl Drop for Socket {
    fn drop(&mut self) {
        // A file that cannot be removed is taken over by the next target.
        let _ = fs::remove_file(&self.path);
    }
}

/// Where the socket is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// There, or the target does not start.
    At(PathBuf),
    /// There, if that can be.
    Perhaps(PathBuf),
    /// Nowhere.
    Nowhere,
}

/// What an option, else the environment, says.
pub(crate) fn wanted(option: Option<&Path>) -> Wanted {
    let of = |variable| std::env::var_os(variable).filter(|value| !value.is_empty());
    let named = option
        .map(Path::to_owned)
        .or_else(|| of(VARIABLE).map(PathBuf::from));
    match named {
        Some(path) if path.as_os_str() == NONE => Wanted::Nowhere,
        Some(path) => Wanted::At(path),
        None => match of(FOLDER_VARIABLE) {
            Some(folders) => {
                let folders = folders.to_string_lossy().into_owned();
                let folder = folders.split(':').next().unwrap_or(&folders).to_owned();
                Wanted::At(Path::new(&folder).join(NAME))
            }
            None if geteuid().is_root() => Wanted::Perhaps(capstan_control::SOCKET.into()),
            None => Wanted::Nowhere,
        },
    }
}

/// Where commands find it unless an option says so.
pub(crate) fn of_service() -> PathBuf {
    let named = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
    named.map_or_else(|| capstan_control::SOCKET.into(), PathBuf::from)
}

/// Makes the socket that is wanted. Without one the target is steered by signals only, which the
/// log says.
///
/// # Errors
/// One that has to be there cannot be.
pub(crate) fn open(wanted: &Wanted) -> anyhow::Result<Option<Socket>> {
    match wanted {
        Wanted::At(path) => bind(path).map(Some),
        Wanted::Perhaps(path) => Ok(bind(path)
            .inspect_err(|error| {
                tracing::info!(
                    "no control socket: {error:#}; `--control-socket PATH` names another one"
                );
            })
            .ok()),
        Wanted::Nowhere => Ok(None),
    }
}

fn bind(path: &Path) -> anyhow::Result<Socket> {
    let cannot = || format!("control socket {}", path.display());
    if let Some(folder) = path.parent().filter(|folder| !folder.exists()) {
        let made = DirBuilder::new().mode(0o755).create(folder);
        made.with_context(|| format!("{}: its folder cannot be made", cannot()))?;
    }
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if UnixStream::connect(path).is_ok() {
                bail!("{}: another target has it; name another one", cannot());
            }
            // Its target was killed.
            fs::remove_file(path).with_context(cannot)?;
            UnixListener::bind(path)
        }
        bound => bound,
    };
    let listener = listener.with_context(cannot)?;
    let socket = Socket {
        listener,
        path: path.to_owned(),
    };
    socket.listener.set_nonblocking(true).with_context(cannot)?;
    let group = Group::from_name(GROUP).ok().flatten();
    let has = fs::metadata(path).with_context(cannot)?.gid();
    // The service may give nothing away, and is of that group itself.
    let is_shared = group
        .map(|group| group.gid.as_raw())
        .is_some_and(|gid| has == gid || chown(path, None, Some(gid)).is_ok());
    let mode = if is_shared { 0o660 } else { 0o600 };
    fs::set_permissions(path, Permissions::from_mode(mode)).with_context(cannot)?;
    tracing::info!(path = %path.display(), "control socket {}", path.display());
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::UnixListener;

    use super::{Wanted, bind, open};

    #[test]
    fn a_socket_is_not_for_others_and_goes_with_its_target() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/control.sock");
        let socket = bind(&path).unwrap();
        let mode = path.metadata().unwrap().permissions().mode() & 0o777;
        assert!([0o600, 0o660].contains(&mode), "{mode:o}");
        let second = bind(&path).unwrap_err().to_string();
        assert!(second.contains("another target has it"), "{second}");
        let perhaps = open(&Wanted::Perhaps(path.clone())).unwrap();
        assert!(perhaps.is_none() && path.exists());
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn what_a_killed_target_has_left_is_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let _socket = bind(&path).unwrap();
    }
}
