//! Folders that look like machines.

use std::fs;
use std::net::IpAddr;

use tempfile::TempDir;

use crate::Machine;

/// A folder that is filled file by file, and gone when it is dropped.
pub(crate) struct Tree {
    dir: TempDir,
    addresses: Vec<(String, IpAddr)>,
}

impl Tree {
    pub(crate) fn new() -> Self {
        Self {
            dir: tempfile::tempdir().expect("a temporary folder"),
            addresses: Vec::new(),
        }
    }

    /// With a file.
    pub(crate) fn file(self, path: &str, text: &str) -> Self {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().expect("inside the folder")).expect("a folder");
        fs::write(path, text).expect("a file");
        self
    }

    /// With files of one folder: name, text.
    pub(crate) fn files(self, folder: &str, files: &[(&str, &str)]) -> Self {
        files.iter().fold(self, |tree, (name, text)| {
            tree.file(&format!("{folder}/{name}"), text)
        })
    }

    /// With an interface address.
    pub(crate) fn address(mut self, interface: &str, address: &str) -> Self {
        let address = address.parse().expect("an address");
        self.addresses.push((interface.to_owned(), address));
        self
    }

    /// With the line of `/proc/self/limits` for locked memory.
    pub(crate) fn memlock(self, soft: &str) -> Self {
        let line = format!("Max locked memory         {soft:<20} {soft:<20} bytes\n");
        self.file("proc/self/limits", &line)
    }

    /// The machine it looks like, for as long as the tree is there.
    pub(crate) fn machine(&self) -> Machine {
        Machine::at(self.dir.path(), self.addresses.clone())
    }
}
