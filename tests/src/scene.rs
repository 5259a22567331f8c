//! A target of one image and a machine that attaches it, for tests of disks. All of it needs root.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::disks::ext4_image;
use crate::program::{Daemon, Machine, complaint, has_disks, own_address, utf8};

/// Bytes of an image that is no file system.
const RAW_BYTES: u64 = 64 << 20;

/// A target of an image, and a machine.
pub struct Scene {
    /// Of the image.
    pub folder: TempDir,
    /// The target.
    pub daemon: Daemon,
    /// Its host.
    pub machine: Machine,
}

impl Scene {
    /// Of an image with an ext4 file system; `None` where `test` cannot have disks, which is told.
    #[must_use]
    pub fn ext4(test: &str) -> Option<Self> {
        has_disks(test, &["mkfs.ext4"]).then(|| Self::of(ext4_image))
    }

    /// Of an image that is made in a folder.
    ///
    /// # Panics
    /// When there is no such folder, or no target.
    #[must_use]
    pub fn of(image: impl FnOnce(&Path) -> PathBuf) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let image = image(folder.path());
        let at = own_address();
        Self {
            daemon: Daemon::start(utf8(&image), 4096, at),
            machine: Machine::new(at),
            folder,
        }
    }

    /// Of an image of 64 MiB with these bytes at its start.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn raw(bytes: &[u8]) -> Self {
        Self::of(|folder| {
            let path = folder.join("disk.img");
            let file = File::create(&path).unwrap();
            file.set_len(RAW_BYTES).unwrap();
            file.write_all_at(bytes, 0).unwrap();
            path
        })
    }

    /// What `mount ARGS` complains of.
    ///
    /// # Panics
    /// When it does not.
    #[must_use]
    pub fn refused(&self, args: &[&str]) -> String {
        let point = self.machine.mount_point();
        let args = [args, &[utf8(&point)]].concat();
        complaint(&self.machine.run_on_target("mount", &args))
    }
}

/// A [`Scene`] of an ext4 file system that is mounted at the machine's mount point.
pub struct Mounted {
    /// What it is mounted from.
    pub scene: Scene,
    /// The disk.
    pub device: PathBuf,
}

impl Mounted {
    /// Of an image with an ext4 file system.
    ///
    /// # Panics
    /// When it cannot be mounted.
    #[must_use]
    pub fn ext4() -> Self {
        let scene = Scene::of(ext4_image);
        scene.machine.mount(&[]);
        let device = PathBuf::from(scene.machine.list()[0]["device"].as_str().unwrap());
        Self { scene, device }
    }
}
