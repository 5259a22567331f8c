//! READDIR and READDIRPLUS.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{DirEntryExt, MetadataExt};

use capstan_nfs_proto::codec::Opaque;
use capstan_nfs_proto::v3::args;
use capstan_nfs_proto::v3::call::Call as Procedure;
use capstan_nfs_proto::v3::results::{ReadDirPlusResult, ReadDirResult};
use capstan_nfs_proto::v3::status::Status;
use capstan_nfs_proto::v3::types::Verifier;

use crate::client::{Client, ok, with_mode};
use crate::support::{Served, put};

/// Names with the numbers of their files, the cookie of the last, the verifier, and whether it is
/// the end.
type Part = (Vec<(String, u64)>, u64, Verifier, bool);

fn text(name: &[u8]) -> String {
    String::from_utf8(name.to_vec()).unwrap()
}

fn read(
    client: &mut Client,
    dir: &[u8],
    (cookie, cookieverf): (u64, Verifier),
    count: u32,
) -> Result<Part, Status> {
    let answer = client.call(&Procedure::ReadDir(args::ReadDir {
        dir: Opaque(dir),
        cookie,
        cookieverf,
        count,
    }));
    let read = ok(answer.decode::<ReadDirResult<'_>>())?;
    // All but the status.
    assert!(answer.bytes.len() - 4 <= usize::try_from(count).unwrap());
    assert!(read.dir_attributes.is_some());
    let entries: Vec<_> = read.entries.iter().collect();
    let last = entries.last().map_or(cookie, |entry| entry.cookie);
    let names = entries
        .iter()
        .map(|entry| (text(entry.name.0), entry.fileid));
    Ok((names.collect(), last, read.cookieverf, read.eof))
}

fn filled(served: &Served, count: u32) -> BTreeMap<String, u64> {
    let path = served.path().join("d");
    fs::create_dir(&path).unwrap();
    for number in 0..count {
        let name = format!(
            "{number}-{}",
            "n".repeat(usize::try_from(number % 50).unwrap())
        );
        put(&path.join(name), b"", number, 0o644);
    }
    let here = fs::read_dir(&path).unwrap().map(|entry| {
        let entry = entry.unwrap();
        (entry.file_name().into_string().unwrap(), entry.ino())
    });
    let inode = |path: &std::path::Path| fs::metadata(path).unwrap().ino();
    let dots = [
        (".".into(), inode(&path)),
        ("..".into(), inode(&served.path())),
    ];
    here.chain(dots).collect()
}

#[test]
fn root_a_directory_is_read_in_parts() {
    let served = Served::new();
    let expected = filled(&served, 500);
    let mut client = Client::new(&served);
    let dir = client.named("d");
    for count in [300, 1024, 4096, u32::MAX] {
        let (mut at, mut found, mut parts) = ((0, [0; 8]), Vec::new(), 0);
        loop {
            let (names, last, verifier, eof) = read(&mut client, &dir, at, count).unwrap();
            found.extend(names);
            parts += 1;
            at = (last, verifier);
            if eof {
                break;
            }
        }
        assert_eq!(
            found.len(),
            expected.len(),
            "each once, in parts of {count}"
        );
        assert_eq!(found.into_iter().collect::<BTreeMap<_, _>>(), expected);
        assert_eq!(parts == 1, count == u32::MAX);
    }
    // Behind the last there is nothing.
    let (_, last, verifier, _) = read(&mut client, &dir, (0, [0; 8]), u32::MAX).unwrap();
    let (names, _, _, eof) = read(&mut client, &dir, (last, verifier), 4096).unwrap();
    assert_eq!((names, eof), (Vec::new(), true));
}

#[test]
fn root_directories_that_cannot_be_read_say_why() {
    let served = Served::new();
    filled(&served, 10);
    put(&served.path().join("f"), b"", 0, 0o644);
    let mut client = Client::new(&served);
    let (dir, file) = (client.named("d"), client.named("f"));
    let start = (0, [0; 8]);
    assert_eq!(
        read(&mut client, &file, start, 4096).err(),
        Some(Status::NOTDIR)
    );
    assert_eq!(
        read(&mut client, &dir, start, 100).err(),
        Some(Status::TOOSMALL)
    );
    assert_eq!(
        read(&mut client, &dir, start, 0).err(),
        Some(Status::TOOSMALL)
    );
    let (_, last, verifier, _) = read(&mut client, &dir, start, 200).unwrap();
    let other = verifier.map(|byte| !byte);
    let wrong = read(&mut client, &dir, (last, other), 4096);
    assert_eq!(wrong.err(), Some(Status::BAD_COOKIE));
    assert!(read(&mut client, &dir, (last, verifier), 4096).is_ok());
    client.set(&dir, with_mode(0o711), None).unwrap();
    let mut user = Client::user(&served, 1000);
    assert_eq!(
        read(&mut user, &dir, start, 4096).err(),
        Some(Status::ACCES)
    );
    // A caller that can read a directory and not search it learns names alone.
    client.set(&dir, with_mode(0o744), None).unwrap();
    assert_eq!(read(&mut user, &dir, start, 4096).unwrap().0.len(), 12);
    let answer = user.call(&plus(&dir, start, 4096, 8192));
    let read = ok(answer.decode::<ReadDirPlusResult<'_>>()).unwrap();
    for entry in read.entries.iter() {
        assert_eq!((entry.name_attributes, entry.name_handle), (None, None));
    }
}

#[test]
fn root_the_directory_above_an_export_is_not_shown() {
    let served = Served::new();
    let mut client = Client::new(&served);
    let root = client.root();
    let own = fs::metadata(served.path()).unwrap().ino();
    let (names, ..) = read(&mut client, &root, (0, [0; 8]), 4096).unwrap();
    let dots = [(".".to_owned(), own), ("..".to_owned(), own)];
    assert_eq!(names, dots);
}

fn plus(dir: &[u8], at: (u64, Verifier), dircount: u32, maxcount: u32) -> Procedure<'_> {
    Procedure::ReadDirPlus(args::ReadDirPlus {
        dir: Opaque(dir),
        cookie: at.0,
        cookieverf: at.1,
        dircount,
        maxcount,
    })
}

#[test]
fn root_a_large_directory_is_read_with_attributes_and_handles() {
    let served = Served::new();
    let expected = filled(&served, 3000);
    let mut client = Client::new(&served);
    let dir = client.named("d");
    for (dircount, maxcount) in [(512, 8192), (u32::MAX, 32 << 10), (u32::MAX, u32::MAX)] {
        let (mut at, mut found, mut some) = ((0, [0; 8]), BTreeMap::new(), Vec::new());
        let mut count = 0;
        loop {
            let answer = client.call(&plus(&dir, at, dircount, maxcount));
            assert!(answer.bytes.len() - 4 <= usize::try_from(maxcount).unwrap());
            let read = ok(answer.decode::<ReadDirPlusResult<'_>>()).unwrap();
            let mut counted = 0;
            for entry in read.entries.iter() {
                let name = text(entry.entry.name.0);
                counted += 20 + name.len().next_multiple_of(4);
                if name != "." && name != ".." {
                    let attributes = entry.name_attributes.unwrap();
                    let (number, _) = name.split_once('-').unwrap();
                    assert_eq!(attributes.uid.to_string(), number);
                    assert_eq!(attributes.fileid, entry.entry.fileid);
                    let handle = entry.name_handle.unwrap().0.to_vec();
                    if attributes.uid % 500 == 7 {
                        some.push((handle, attributes));
                    }
                }
                count += 1;
                found.insert(name, entry.entry.fileid);
                at = (entry.entry.cookie, read.cookieverf);
            }
            assert!(counted <= usize::try_from(dircount).unwrap());
            if read.eof {
                break;
            }
        }
        assert_eq!((count, &found), (expected.len(), &expected));
        assert_eq!(some.len(), 6);
        for (handle, attributes) in some {
            assert_eq!(client.attributes(&handle), Ok(attributes));
        }
    }
    let answer = client.call(&plus(&dir, (0, [0; 8]), 4096, 200));
    let small = ok(answer.decode::<ReadDirPlusResult<'_>>());
    assert_eq!(small.err(), Some(Status::TOOSMALL));
    // A client that counts nothing gets on all the same.
    let answer = client.call(&plus(&dir, (0, [0; 8]), 0, 4096));
    let one = ok(answer.decode::<ReadDirPlusResult<'_>>()).unwrap();
    assert_eq!((one.entries.iter().count(), one.eof), (1, false));
}
