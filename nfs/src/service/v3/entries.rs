//! Procedures that change directories: CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME and
//! LINK (RFC 1813, sections 3.3.8 to 3.3.15).

use capstan_exports::entries::{Create, Removed, Special};
use capstan_exports::{EntriesChanged, FileError, FileType, Node, OpenAccess, SetAttributes};
use capstan_nfs_proto::codec::{DataItem, Encode, Opaque};
use capstan_nfs_proto::limits::LINK_TEXT_BYTES_MAX;
use capstan_nfs_proto::v3::args::{self, CreateHow, MkNodData};
use capstan_nfs_proto::v3::results::{
    CreateOk, CreateResult, LinkResult, LinkWcc, Outcome, RenameResult, RenameWcc, WccResult,
};
use capstan_nfs_proto::v3::status::Status;
use capstan_nfs_proto::v3::types::{DirOpArgs, FileName, WccData};
use capstan_rpc_server::Data;
use capstan_rpcrdma::xdr::Writer;
use nix::errno::Errno;

use super::context::{Context, File, after, changed, entries_changed};
use super::failure::Failure;
use super::limits::CREATE_ATTEMPTS;
use super::{Written, convert};

/// # Errors
/// The status for "." or "..", which are in every directory and are not made, moved or removed.
fn check_dots(name: FileName<'_>, own: Status, parent: Status) -> Result<(), Failure> {
    match name.0 {
        b"." => Err(Failure(own)),
        b".." => Err(Failure(parent)),
        _ => Ok(()),
    }
}

impl Context<'_> {
    /// Makes an entry with `make`, and answers with what was made.
    fn make(
        &self,
        place: &DirOpArgs<'_>,
        to: &mut Writer<'_>,
        make: impl FnOnce(&File) -> Result<(Node, Option<EntriesChanged>), Failure>,
    ) -> Written {
        let dir = self.file(place.dir);
        let made = dir.as_ref().map_err(|failure| *failure).and_then(|dir| {
            check_directory(dir)?;
            check_dots(place.name, Status::EXIST, Status::EXIST)?;
            make(dir)
        });
        let dir_wcc = match (&dir, &made) {
            (Ok(dir), Ok((_, Some(change)))) => entries_changed(dir, change),
            _ => changed(&dir),
        };
        let handle = made.as_ref().ok().and_then(|(node, _)| self.handle(node));
        let result: CreateResult<'_> = match made {
            Ok((node, _)) => Outcome::Ok(CreateOk {
                obj: handle.as_ref().map(|handle| Opaque(handle.bytes())),
                obj_attributes: convert::attributes(&node).ok(),
                dir_wcc,
            }),
            Err(Failure(status)) => Outcome::Failed {
                status,
                resfail: dir_wcc,
            },
        };
        result.encode(to)
    }

    pub(super) fn create(&self, arguments: &args::Create<'_>, to: &mut Writer<'_>) -> Written {
        self.make(&arguments.place, to, |dir| {
            let name = arguments.place.name;
            match arguments.how {
                CreateHow::Unchecked(attributes) => {
                    self.create_unchecked(dir, name, &convert::to_set(&attributes))
                }
                CreateHow::Guarded(attributes) => {
                    create_new(dir, name, Create::Guarded, &convert::to_set(&attributes))
                }
                // The client sets the attributes behind it.
                CreateHow::Exclusive(verifier) => {
                    let none = SetAttributes::default();
                    create_new(dir, name, Create::Exclusive(verifier), &none)
                }
            }
        })
    }

    /// A file that is there is taken, whatever its mode, and is given no more than the size (RFC
    /// 1813, section 3.3.8).
    fn create_unchecked(
        &self,
        dir: &File,
        name: FileName<'_>,
        attributes: &SetAttributes,
    ) -> Result<(Node, Option<EntriesChanged>), Failure> {
        for _ in 0..CREATE_ATTEMPTS {
            match create_new(dir, name, Create::Guarded, attributes) {
                Err(Failure(Status::EXIST)) => {}
                other => return other,
            }
            let node = match self.find(dir, name) {
                Err(Failure(Status::NOENT)) => continue,
                found => found?,
            };
            if node.file_type() != FileType::Regular {
                return Err(Failure(Status::EXIST));
            }
            let caller = self.caller(node.export())?;
            let file = File { node, caller };
            if attributes.size_bytes.is_some() {
                let size = SetAttributes {
                    size_bytes: attributes.size_bytes,
                    ..SetAttributes::default()
                };
                self.set(&file, &size)?;
            }
            return Ok((file.node, None));
        }
        Err(Failure(Status::JUKEBOX))
    }

    pub(super) fn make_directory(
        &self,
        arguments: &args::MkDir<'_>,
        to: &mut Writer<'_>,
    ) -> Written {
        self.make(&arguments.place, to, |dir| {
            let name = dir.name(arguments.place.name)?;
            let attributes = convert::to_set(&arguments.attributes);
            let made = dir.node.make_directory(&dir.caller, name, &attributes)?;
            Ok(with_change(made))
        })
    }

    pub(super) fn make_symlink(
        &self,
        arguments: &args::SymLink<'_>,
        to: &mut Writer<'_>,
    ) -> Written {
        self.make(&arguments.place, to, |dir| {
            let name = dir.name(arguments.place.name)?;
            let text = self.link_target(&arguments.symlink_data)?;
            let attributes = convert::to_set(&arguments.symlink_attributes);
            let (caller, node) = (&dir.caller, &dir.node);
            Ok(with_change(node.make_symlink(
                caller,
                name,
                &text,
                &attributes,
            )?))
        })
    }

    /// The text of a link, which may have been reduced.
    fn link_target(&self, item: &DataItem<'_>) -> Result<Vec<u8>, Failure> {
        if item.length_bytes() > LINK_TEXT_BYTES_MAX {
            return Err(Failure(Status::NAMETOOLONG));
        }
        match self.call.arguments.data(item).ok_or(Status::INVAL)? {
            Data::Inline(text) => Ok(text.to_vec()),
            Data::Pulled(span, length) => {
                let mut text = vec![0; length];
                span.raw().first(length).copy_to(&mut text);
                Ok(text)
            }
        }
    }

    pub(super) fn make_special(&self, arguments: &args::MkNod<'_>, to: &mut Writer<'_>) -> Written {
        self.make(&arguments.place, to, |dir| {
            let name = dir.name(arguments.place.name)?;
            let (special, attributes) = match arguments.what {
                MkNodData::Block(device) => {
                    let numbers = device.spec;
                    let special = Special::Block(numbers.specdata1, numbers.specdata2);
                    (special, device.dev_attributes)
                }
                MkNodData::Character(device) => {
                    let numbers = device.spec;
                    let special = Special::Character(numbers.specdata1, numbers.specdata2);
                    (special, device.dev_attributes)
                }
                MkNodData::Socket(attributes) => (Special::Socket, attributes),
                MkNodData::Fifo(attributes) => (Special::Fifo, attributes),
                MkNodData::Other(_) => return Err(Failure(Status::BADTYPE)),
            };
            let attributes = convert::to_set(&attributes);
            let (caller, node) = (&dir.caller, &dir.node);
            Ok(with_change(node.make_special(
                caller,
                name,
                special,
                &attributes,
            )?))
        })
    }

    /// # Errors
    /// NFS3ERR_JUKEBOX: clients of version 4 may still reclaim what would lose its name.
    fn check_grace(&self) -> Result<(), Failure> {
        self.service
            .with_state(|state, now_us| state.may_take_names(now_us))??;
        Ok(())
    }

    pub(super) fn remove(&self, place: &DirOpArgs<'_>, to: &mut Writer<'_>) -> Written {
        self.remove_entry(place, to, |dir| {
            check_dots(place.name, Status::ACCES, Status::ACCES)?;
            let name = dir.name(place.name)?;
            self.check_grace()?;
            let removed = dir.node.lookup(self.exports, &dir.caller, name).ok();
            let change = dir.node.remove(&dir.caller, name, Removed::File)?;
            self.forget_if_gone(removed);
            Ok(change)
        })
    }

    pub(super) fn remove_directory(&self, place: &DirOpArgs<'_>, to: &mut Writer<'_>) -> Written {
        self.remove_entry(place, to, |dir| {
            // RFC 1813, section 3.3.13.
            check_dots(place.name, Status::INVAL, Status::EXIST)?;
            let name = dir.name(place.name)?;
            Ok(dir.node.remove(&dir.caller, name, Removed::Directory)?)
        })
    }

    fn remove_entry(
        &self,
        place: &DirOpArgs<'_>,
        to: &mut Writer<'_>,
        remove: impl FnOnce(&File) -> Result<EntriesChanged, Failure>,
    ) -> Written {
        let dir = self.file(place.dir);
        let removed = dir.as_ref().map_err(|failure| *failure).and_then(|dir| {
            check_directory(dir)?;
            Ok(entries_changed(dir, &remove(dir)?))
        });
        let result: WccResult = match removed {
            Ok(wcc) => Outcome::Ok(wcc),
            Err(Failure(status)) => Outcome::Failed {
                status,
                resfail: changed(&dir),
            },
        };
        result.encode(to)
    }

    /// Has a file closed that has no name any more, so that its space is free.
    fn forget_if_gone(&self, removed: Option<Node>) {
        if let Some(node) = removed
            && node.file_type() == FileType::Regular
            && node.attributes().is_ok_and(|found| found.link_count == 0)
        {
            let (export, kernel) = (node.export().id(), node.kernel_handle());
            self.service.cached.forget_file(export, kernel);
            self.service.unsynced.forget_file(export, kernel);
        }
    }

    pub(super) fn rename(&self, arguments: &args::Rename<'_>, to: &mut Writer<'_>) -> Written {
        let from_dir = self.file(arguments.from_place.dir);
        let to_dir = self.file(arguments.to_place.dir);
        let renamed = match (&from_dir, &to_dir) {
            (Ok(from_dir), Ok(to_dir)) => self.rename_entry(from_dir, to_dir, arguments),
            (Err(failure), _) | (_, Err(failure)) => Err(*failure),
        };
        let result: RenameResult = match renamed {
            Ok(wcc) => Outcome::Ok(wcc),
            Err(Failure(status)) => Outcome::Failed {
                status,
                resfail: RenameWcc {
                    fromdir_wcc: changed(&from_dir),
                    todir_wcc: changed(&to_dir),
                },
            },
        };
        result.encode(to)
    }

    fn rename_entry(
        &self,
        from_dir: &File,
        to_dir: &File,
        arguments: &args::Rename<'_>,
    ) -> Result<RenameWcc, Failure> {
        check_directory(from_dir)?;
        check_directory(to_dir)?;
        for place in [&arguments.from_place, &arguments.to_place] {
            // RFC 1813, section 3.3.14.
            check_dots(place.name, Status::INVAL, Status::INVAL)?;
        }
        let from = from_dir.name(arguments.from_place.name)?;
        let to = to_dir.name(arguments.to_place.name)?;
        self.check_grace()?;
        let replaced = to_dir.node.lookup(self.exports, &to_dir.caller, to).ok();
        let [of_from, of_to] = from_dir
            .node
            .rename(&from_dir.caller, from, &to_dir.node, to)?;
        self.forget_if_gone(replaced);
        Ok(RenameWcc {
            fromdir_wcc: entries_changed(from_dir, &of_from),
            todir_wcc: entries_changed(to_dir, &of_to),
        })
    }

    pub(super) fn link(&self, arguments: &args::Link<'_>, to: &mut Writer<'_>) -> Written {
        let file = self.file(arguments.file);
        let dir = self.file(arguments.link.dir);
        let linked = match (&file, &dir) {
            (Ok(file), Ok(dir)) => link_entry(file, dir, arguments.link.name),
            (Err(failure), _) | (_, Err(failure)) => Err(*failure),
        };
        let file_attributes = after(&file);
        let with = |linkdir_wcc| LinkWcc {
            file_attributes,
            linkdir_wcc,
        };
        let result: LinkResult = match linked {
            Ok(wcc) => Outcome::Ok(with(wcc)),
            Err(Failure(status)) => Outcome::Failed {
                status,
                resfail: with(changed(&dir)),
            },
        };
        result.encode(to)
    }
}

/// What is no directory has no names, whatever they are.
fn check_directory(dir: &File) -> Result<(), Failure> {
    if dir.node.file_type() == FileType::Directory {
        Ok(())
    } else {
        Err(Failure(Status::NOTDIR))
    }
}

/// What was made, and the directory that it has changed.
fn with_change<N>((made, change): (N, EntriesChanged)) -> (N, Option<EntriesChanged>) {
    (made, Some(change))
}

fn link_entry(file: &File, dir: &File, name: FileName<'_>) -> Result<WccData, Failure> {
    check_directory(dir)?;
    check_dots(name, Status::EXIST, Status::EXIST)?;
    let name = dir.name(name)?;
    let change = dir.node.link(&dir.caller, name, &file.node)?;
    Ok(entries_changed(dir, &change))
}

fn create_new(
    dir: &File,
    name: FileName<'_>,
    how: Create,
    attributes: &SetAttributes,
) -> Result<(Node, Option<EntriesChanged>), Failure> {
    let name = dir.name(name)?;
    let access = OpenAccess::Write;
    match dir.node.create(&dir.caller, name, how, attributes, access) {
        Ok(created) => Ok((created.node, created.directory)),
        // The name is there, and is no file that the verifier has made.
        Err(FileError::WrongType { .. }) => Err(Failure(Status::EXIST)),
        Err(FileError::Kernel {
            operation: _,
            errno: Errno::EBUSY,
        }) => Err(Failure(Status::JUKEBOX)),
        Err(error) => Err(error.into()),
    }
}
