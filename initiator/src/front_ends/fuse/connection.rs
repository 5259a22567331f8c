//! A FUSE connection, as the kernel counts it (Documentation/filesystems/fuse.rst, Control
//! filesystem).

use std::fs;
use std::io;
use std::path::Path;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde::{Deserialize, Serialize};

/// Where systemd mounts the control file system.
const CONTROL: &str = "/sys/fs/fuse/connections";

/// The number of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FuseConnection(u32);

impl FuseConnection {
    /// That of a FUSE mount, by the minor number of its device.
    #[must_use]
    pub fn of_device((_, minor): (u32, u32)) -> Self {
        Self(minor)
    }

    /// Ends it: every request fails, those of the future as well. `folder` takes the control file
    /// system for a moment where the machine has not mounted it.
    ///
    /// # Errors
    /// There is no such connection, or this is not root.
    pub fn abort(self, folder: &Path) -> io::Result<()> {
        let abort = |control: &Path| {
            let file = control.join(self.0.to_string()).join("abort");
            fs::write(file, "1")
        };
        let has_any =
            |folder| fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some());
        if has_any(CONTROL) {
            return abort(Path::new(CONTROL));
        }
        let control = folder.join("fusectl");
        fs::create_dir(&control)?;
        let none = None::<&str>;
        let result = mount(none, &control, Some("fusectl"), MsFlags::empty(), none)
            .map_err(io::Error::from)
            .and_then(|()| {
                let result = abort(&control);
                umount2(&control, MntFlags::MNT_DETACH)?;
                result
            });
        fs::remove_dir(&control)?;
        result
    }
}
