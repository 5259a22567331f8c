//! Get LBA Status of every kind of volume: what is allocated, as the file system tells it.

use std::fs::File;
use std::os::unix::fs::FileExt;

use capstan_nvme_proto::command::{AdminCommand, GetLbaStatus, Identify};
use capstan_nvme_proto::identify::Cns;
use capstan_nvme_proto::lba_status::{ActionType, CompletionCondition, LbaStatusList};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use capstan_tests::disks::{Loop, own_mounts};
use capstan_tests::program::{has_disks, utf8};
use capstan_tests::target::{SUBNQN, TestTarget};
use capstan_tests::wire_host::{Data, Queue, WireHost};

const LBAS: u64 = 16_384;
const ALL: GetLbaStatus = GetLbaStatus {
    nsid: 1,
    slba: 0,
    length_bytes: 4096,
    action: ActionType::ALLOCATED,
    range_lbas: 0,
};

/// A target with a namespace of 64 MiB for each of `volumes`, in words of its configuration.
fn start(volumes: &[String]) -> TestTarget {
    let mut toml = format!(
        "[target]\nreactors = 2\n[[listener]]\naddress = \"127.0.0.1\"\nport = 0\n\
         [[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n"
    );
    for volume in volumes {
        toml.push_str(&format!("[[subsystem.namespace]]\n{volume}\nlba = 4096\n"));
    }
    TestTarget::start(&toml)
}

fn command(get: GetLbaStatus) -> Sqe {
    AdminCommand::GetLbaStatus(get).encode(0, Sgl::EMPTY)
}

fn read(data: &[u8]) -> (CompletionCondition, Vec<(u64, u64)>) {
    let (head, descriptors) = LbaStatusList::parse(data).expect("a list");
    assert_eq!(head.descriptors.get() as usize, descriptors.len());
    let pairs = descriptors.iter().map(|d| (d.slba.get(), d.nlb()));
    (head.condition, pairs.collect())
}

fn ask(host: &mut WireHost, get: GetLbaStatus) -> (CompletionCondition, Vec<(u64, u64)>) {
    let (cqe, data) = host.run(Queue::Admin, command(get), Data::Pushed(4096));
    assert!(cqe.status().is_success(), "{get:?}: {:?}", cqe.status());
    read(&data)
}

/// A sparse file of 64 MiB with data at these blocks.
fn image(folder: &tempfile::TempDir, name: &str, blocks: impl Iterator<Item = u64>) -> String {
    let path = folder.path().join(name);
    let file = File::create(&path).unwrap();
    file.set_len(LBAS * 4096).unwrap();
    for block in blocks {
        file.write_all_at(&[7; 4096], block * 4096).unwrap();
    }
    format!("path = \"{}\"", utf8(&path))
}

#[test]
fn each_kind_of_volume_tells_what_it_can() {
    const WHOLE: CompletionCondition = CompletionCondition::COMPLETE;
    let folder = tempfile::tempdir().unwrap();
    let sparse = image(&folder, "sparse", [3, 4, 5, 1000, LBAS - 1].into_iter());
    let empty = image(&folder, "empty", std::iter::empty());
    let target = start(&[
        sparse,
        empty,
        "ram = \"64MiB\"".to_owned(),
        "null = \"64MiB\"".to_owned(),
    ]);
    let mut host = WireHost::connect(target.addresses[0], 1);
    let pieces = vec![(3, 3), (1000, 1), (LBAS - 1, 1)];
    assert_eq!(ask(&mut host, ALL), (WHOLE, pieces));
    let of = |nsid| GetLbaStatus { nsid, ..ALL };
    assert_eq!(ask(&mut host, of(2)), (WHOLE, vec![]));
    assert_eq!(ask(&mut host, of(3)), (WHOLE, vec![(0, LBAS)]));
    assert_eq!(ask(&mut host, of(4)), (WHOLE, vec![]));
    // A range inside one piece, and one between two.
    let within = GetLbaStatus {
        slba: 4,
        range_lbas: 1,
        ..ALL
    };
    assert_eq!(ask(&mut host, within), (WHOLE, vec![(4, 1)]));
    let between = GetLbaStatus {
        slba: 6,
        range_lbas: 994,
        ..ALL
    };
    assert_eq!(ask(&mut host, between), (WHOLE, vec![]));
    let behind = GetLbaStatus { slba: LBAS, ..ALL };
    let (cqe, _) = host.run(Queue::Admin, command(behind), Data::Pushed(4096));
    assert_eq!(cqe.status().code(), Status::LBA_OUT_OF_RANGE);
    drop(host);
    target.stop();
}

/// As many as an Admin queue takes, in among commands that do not look at media; and a host that
/// leaves in the middle harms nobody.
#[test]
fn many_looks_are_answered_each_with_its_own_beside_other_commands() {
    let folder = tempfile::tempdir().unwrap();
    let every_other = image(&folder, "comb", (0..2048).map(|n| n * 2));
    let empty = image(&folder, "empty", std::iter::empty());
    let target = start(&[every_other, empty]);
    let mut host = WireHost::connect(target.addresses[0], 1);
    let identify = AdminCommand::Identify(Identify::new(Cns::CONTROLLER, 0));
    for _ in 0..8 {
        let mut looks = Vec::new();
        for nth in 0..20_u64 {
            let get = GetLbaStatus {
                nsid: if nth % 4 == 3 { 2 } else { 1 },
                slba: nth,
                ..ALL
            };
            looks.push((
                get,
                host.send(Queue::Admin, command(get), Data::Pushed(4096)),
            ));
        }
        let sqe = identify.encode(0, Sgl::EMPTY);
        let (cqe, _) = host.run(Queue::Admin, sqe, Data::Pushed(4096));
        assert!(cqe.status().is_success());
        for (get, cid) in looks {
            let (cqe, data) = host.answer(Queue::Admin, cid);
            assert!(cqe.status().is_success(), "{:?}", cqe.status());
            if get.nsid == 2 {
                assert_eq!(read(&data), (CompletionCondition::COMPLETE, vec![]));
                continue;
            }
            let first = get.slba.next_multiple_of(2);
            let expected: Vec<_> = (0..255).map(|n| (first + 2 * n, 1)).collect();
            assert_eq!(read(&data), (CompletionCondition::MORE, expected));
        }
    }
    for _ in 0..20 {
        host.send(Queue::Admin, command(ALL), Data::Pushed(4096));
    }
    drop(host);
    let mut other = WireHost::connect(target.addresses[0], 2);
    assert_eq!(ask(&mut other, ALL).1.len(), 255);
    drop(other);
    target.stop();
}

/// A device tells nothing of its blocks.
#[test]
fn of_a_device_everything_is_allocated() {
    if !has_disks("of_a_device_everything_is_allocated", &["losetup"]) {
        return;
    }
    own_mounts();
    let folder = tempfile::tempdir().unwrap();
    image(&folder, "disk", [5].into_iter());
    let disk = Loop::new(&folder.path().join("disk"));
    let target = start(&[format!("path = \"{}\"", utf8(disk.path()))]);
    let mut host = WireHost::connect(target.addresses[0], 1);
    let whole = (CompletionCondition::COMPLETE, vec![(0, LBAS)]);
    assert_eq!(ask(&mut host, ALL), whole);
    drop(host);
    target.stop();
}
