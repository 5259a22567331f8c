//! Replies: their bytes, and how many entries of a directory go into one.

use capstan_nfs_proto::codec::{
    Chain, DataItem, Decode, Encode, List, Opaque, Reader, ReducedItem, Writer,
};
use capstan_nfs_proto::mount::{Export, Exports, MountOk, MountResult, MountStatus};
use capstan_nfs_proto::v3::directory::{DirectoryEncoder, EntryDoesNotFit};
use capstan_nfs_proto::v3::results::{
    DirEntry, DirEntryPlus, GetAttrResult, Outcome, ReadDirPlusResult, ReadDirResult, ReadOk,
    ReadResult, Void, WccResult,
};
use capstan_nfs_proto::v3::status::Status;
use capstan_nfs_proto::v3::types::{
    Attributes, DeviceNumbers, FileName, FileType, Time, WccAttr, WccData,
};

use crate::words::Words;

const ATTRIBUTES: Attributes = Attributes {
    file_type: FileType::Directory,
    mode: 0o755,
    nlink: 2,
    uid: 1,
    gid: 3,
    size: 4096,
    used: 8192,
    rdev: DeviceNumbers {
        specdata1: 0,
        specdata2: 0,
    },
    fsid: 9,
    fileid: 10,
    atime: Time {
        seconds: 1,
        nseconds: 2,
    },
    mtime: Time {
        seconds: 3,
        nseconds: 4,
    },
    ctime: Time {
        seconds: 5,
        nseconds: 6,
    },
};

fn attributes(message: Words) -> Words {
    message
        .words(&[2, 0o755, 2, 1, 3])
        .hyper(4096)
        .hyper(8192)
        .words(&[0, 0])
        .hyper(9)
        .hyper(10)
        .words(&[1, 2, 3, 4, 5, 6])
}

fn encoded(value: &impl Encode) -> Vec<u8> {
    let mut buffer = [0; 1024];
    let mut writer = Writer::new(&mut buffer);
    value.encode(&mut writer).unwrap();
    writer.written().to_vec()
}

#[test]
fn attributes_are_84_bytes_in_the_order_of_the_rfc() {
    let expected = attributes(Words::new().word(0)).0;
    assert_eq!(expected.len(), 4 + 84);
    let result: GetAttrResult = Outcome::Ok(ATTRIBUTES);
    assert_eq!(encoded(&result), expected);
    assert_eq!(
        GetAttrResult::decode(&mut Reader::new(&expected), "result"),
        Ok(result)
    );
    let stale: GetAttrResult = Outcome::Failed {
        status: Status::STALE,
        resfail: Void,
    };
    assert_eq!(encoded(&stale), Words::new().word(70).0);
}

#[test]
fn a_failure_brings_what_is_known_of_the_object() {
    let before = WccAttr {
        size: 1,
        mtime: Time {
            seconds: 2,
            nseconds: 3,
        },
        ctime: Time {
            seconds: 4,
            nseconds: 5,
        },
    };
    let resfail = WccData {
        before: Some(before),
        after: None,
    };
    let result: WccResult = Outcome::Failed {
        status: Status::NOT_SYNC,
        resfail,
    };
    let expected = Words::new()
        .words(&[10_002, 1])
        .hyper(1)
        .words(&[2, 3, 4, 5, 0])
        .0;
    assert_eq!(encoded(&result), expected);
    assert_eq!(
        WccResult::decode(&mut Reader::new(&expected), "result"),
        Ok(result)
    );
}

#[test]
fn data_of_read_is_reduced() {
    let data = DataItem::Reduced {
        index: 0,
        length_bytes: 4096,
    };
    let result: ReadResult<'_> = Outcome::Ok(ReadOk {
        file_attributes: None,
        count: 4096,
        eof: true,
        data,
    });
    let mut buffer = [0; 64];
    let mut writer = Writer::new(&mut buffer);
    result.encode(&mut writer).unwrap();
    assert_eq!(
        writer.written(),
        Words::new().words(&[0, 0, 4096, 1, 4096]).0
    );
    let items = [ReducedItem {
        position: 20,
        length_bytes: 4096,
    }];
    assert_eq!(writer.reduced_items(), items);
    let mut reader = Reader::with_reduced(writer.written(), &items);
    assert_eq!(ReadResult::decode(&mut reader, "result"), Ok(result));
    assert_eq!(reader.finish(), Ok(()));
}

fn entry(cookie: u64) -> DirEntry<'static> {
    DirEntry {
        fileid: 100 + cookie,
        name: FileName(b"abc"),
        cookie,
    }
}

#[test]
fn a_directory_takes_as_many_entries_as_count_has_room_for() {
    // READDIR3resok: no attributes 4, verifier 8, end 8; an entry: 4 + 8 + (4 + 4) + 8 = 28.
    for (count, fits) in [(0, 0), (47, 0), (48, 1), (75, 1), (76, 2), (1000, 2)] {
        let mut buffer = [0; 256];
        let mut writer = Writer::new(&mut buffer);
        let mut directory = DirectoryEncoder::new(&mut writer, None, [6; 8], count).unwrap();
        for cookie in 1..=2 {
            let expected = if cookie <= fits {
                Ok(())
            } else {
                Err(EntryDoesNotFit)
            };
            assert_eq!(directory.entry(&entry(cookie)), expected, "{count}");
        }
        assert_eq!(u64::from(directory.entries()), fits);
        directory.finish(fits == 2).unwrap();
        let bytes = writer.written().to_vec();
        let decoded = ReadDirResult::decode(&mut Reader::new(&bytes), "result").unwrap();
        let Outcome::Ok(result) = decoded else {
            panic!("{decoded:?}")
        };
        let entries: Vec<_> = (1..=fits).map(entry).collect();
        assert_eq!(result.entries, Chain::of(&entries));
        assert_eq!((result.cookieverf, result.eof), ([6; 8], fits == 2));
        assert_eq!(encoded(&decoded), bytes);
    }
}

#[test]
fn a_directory_with_attributes_ends_within_its_buffer() {
    let plus = DirEntryPlus {
        entry: entry(1),
        name_attributes: Some(ATTRIBUTES),
        name_handle: Some(Opaque(b"fh")),
    };
    // Status 4, attributes 88, verifier 8, end 8; an entry: 28 + 88 + 12 = 128.
    for (buffer_bytes, fits) in [(107, None), (108, Some(0)), (235, Some(0)), (236, Some(1))] {
        let mut buffer = vec![0; buffer_bytes];
        let mut writer = Writer::new(&mut buffer);
        let begun = DirectoryEncoder::new(&mut writer, Some(ATTRIBUTES), [6; 8], 1000);
        let (Ok(mut directory), Some(fits)) = (begun, fits) else {
            assert_eq!((fits, writer.offset()), (None, 0));
            continue;
        };
        assert_eq!(
            directory.entry_plus(&plus).is_ok(),
            fits == 1,
            "{buffer_bytes}"
        );
        assert_eq!(directory.entries(), fits);
        directory.finish(true).unwrap();
        let bytes = writer.written().to_vec();
        let decoded = ReadDirPlusResult::decode(&mut Reader::new(&bytes), "result").unwrap();
        let Outcome::Ok(result) = decoded else {
            panic!("{decoded:?}")
        };
        assert_eq!(result.dir_attributes, Some(ATTRIBUTES));
        assert_eq!(result.entries.iter().next(), (fits == 1).then_some(plus));
    }
    let mut buffer = [0; 256];
    let mut writer = Writer::new(&mut buffer);
    writer.u32(7).unwrap();
    let directory = DirectoryEncoder::new(&mut writer, None, [0; 8], 1000).unwrap();
    directory.abandon();
    assert_eq!(writer.offset(), 4);
}

#[test]
fn results_of_mount() {
    let flavors = [1, 0];
    let mounted = MountResult::Ok(MountOk {
        fhandle: Opaque(b"root"),
        auth_flavors: List::of(&flavors),
    });
    let expected = Words::new().word(0).opaque(b"root").words(&[2, 1, 0]).0;
    assert_eq!(encoded(&mounted), expected);
    assert_eq!(
        MountResult::decode(&mut Reader::new(&expected), "result"),
        Ok(mounted)
    );
    let refused = MountResult::Failed(MountStatus::ACCES);
    assert_eq!(encoded(&refused), Words::new().word(13).0);
    assert_eq!(
        MountResult::decode(&mut Reader::new(&encoded(&refused)), "result"),
        Ok(refused)
    );

    let groups = [Opaque(b"one".as_slice()), Opaque(b"*.example.org")];
    let exports = [
        Export {
            dir: Opaque(b"/a"),
            groups: Chain::of(&groups),
        },
        Export {
            dir: Opaque(b"/b"),
            groups: Chain::of(&[]),
        },
    ];
    let expected = Words::new()
        .word(1)
        .opaque(b"/a")
        .word(1)
        .opaque(b"one")
        .word(1)
        .opaque(b"*.example.org")
        .words(&[0, 1])
        .opaque(b"/b")
        .words(&[0, 0])
        .0;
    assert_eq!(encoded(&Chain::of(&exports)), expected);
    assert_eq!(
        Exports::decode(&mut Reader::new(&expected), "exports"),
        Ok(Chain::of(&exports))
    );
}
