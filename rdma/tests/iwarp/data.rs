//! Sends, RDMA WRITEs and RDMA READs.

use capstan_rdma::contract::{Remote, SendOp, WcOpcode, WcStatus};
use capstan_rdma::iwarp::{Config, CrcUse, FpduSize};

use crate::side::{Pair, disconnected, pattern, send, wr};

fn configs() -> Vec<Config> {
    let mut configs = Vec::new();
    for fpdu_size in [FpduSize::Segment, FpduSize::Large] {
        for crc in [CrcUse::Always, CrcUse::Never] {
            configs.push(Config {
                crc,
                fpdu_size,
                same_host: false,
                ..Config::default()
            });
        }
    }
    configs
}

#[test]
fn sends_of_all_sizes_arrive_whole_and_in_order() {
    for config in configs() {
        let mut pair = Pair::with(config.clone(), config);
        let sizes = [
            0,
            1,
            3,
            4,
            63,
            64,
            65,
            255,
            256,
            257,
            1000,
            4096,
            8192,
            65_000,
            70_000,
            1 << 20,
        ];
        for (i, size) in sizes.into_iter().enumerate() {
            let bytes = pattern(7, size);
            pair.host.write(0, &bytes);
            pair.target.write(0, &vec![0xee; size + 8]);
            let len = u32::try_from(size).unwrap();
            let room = pair.target.sge(0, len);
            pair.target_qp.post_recv(i as u64, &[room]).unwrap();
            let sges = [pair.host.sge(0, len)];
            pair.host_qp.post_send(&send(i as u64, &sges)).unwrap();
            pair.host_qp.ring_doorbell();
            pair.turn_until("completion", |h, t| {
                h.completions.len() == 1 && t.completions.len() == 1
            });
            let sent = pair.host.completions.remove(0);
            let received = pair.target.completions.remove(0);
            assert_eq!((sent.wr_id, sent.status), (i as u64, WcStatus::Success));
            assert_eq!(received.status, WcStatus::Success);
            assert_eq!((received.opcode, received.byte_len), (WcOpcode::Recv, len));
            assert!(pair.target.read(0, size) == bytes, "{size} bytes differ");
            assert_eq!(pair.target.read(size, 8), [0xee; 8], "beyond {size} bytes");
        }
    }
}

#[test]
fn writes_and_reads_of_all_sizes() {
    for config in configs() {
        let mut pair = Pair::with(config.clone(), config);
        for size in [
            0,
            1,
            5,
            300,
            4096,
            65_535,
            65_536,
            200_001,
            1 << 20,
            3 << 20,
        ] {
            let bytes = pattern(9, size);
            let len = u32::try_from(size).unwrap();
            pair.target.write(100, &bytes);
            pair.host.write(5, &vec![0; size]);
            let to = Remote {
                addr: pair.host.mr.addr() + 5,
                rkey: pair.host.mr.rkey(),
            };
            let sges = [pair.target.sge(100, len)];
            let write = wr(1, SendOp::Write(to), &sges);
            pair.target_qp.post_send(&write).unwrap();
            pair.host_qp.post_recv(2, &[]).unwrap();
            pair.target_qp.post_send(&send(3, &[])).unwrap();
            pair.target_qp.ring_doorbell();
            pair.turn_until("write", |h, t| {
                h.completions.len() == 1 && t.completions.len() == 2
            });
            assert!(pair.host.read(5, size) == bytes, "write of {size}");
            pair.host.completions.clear();
            pair.target.completions.clear();

            let from = Remote {
                addr: pair.target.mr.addr() + 100,
                rkey: pair.target.mr.rkey(),
            };
            pair.host.write(4 << 20, &vec![0; size]);
            let sges = [pair.host.sge(4 << 20, len)];
            let read = wr(4, SendOp::Read(from), &sges);
            pair.host_qp.post_send(&read).unwrap();
            pair.host_qp.ring_doorbell();
            pair.turn_until("read", |h, _| h.completions.len() == 1);
            let done = pair.host.completions.remove(0);
            assert_eq!(
                (done.opcode, done.status),
                (WcOpcode::RdmaRead, WcStatus::Success)
            );
            assert!(pair.host.read(4 << 20, size) == bytes, "read of {size}");
        }
    }
}

#[test]
fn a_receive_posted_late_still_gets_its_message() {
    let mut pair = Pair::new();
    let bytes = pattern(1, 200_000);
    pair.host.write(0, &bytes);
    let sges = [pair.host.sge(0, 200_000)];
    for i in 0..3 {
        pair.host_qp.post_send(&send(i, &sges)).unwrap();
    }
    pair.host_qp.ring_doorbell();
    for _ in 0..200 {
        pair.host.turn();
        pair.target.turn();
    }
    assert!(pair.target.completions.is_empty());
    for i in 0..3 {
        let room = pair.target.sge(0, 300_000);
        pair.target_qp.post_recv(i, &[room]).unwrap();
        pair.turn_until("receive", |_, t| {
            t.completions.len() == usize::try_from(i).unwrap() + 1
        });
        assert!(pair.target.read(0, bytes.len()) == bytes);
    }
    pair.turn_until("sends", |h, _| h.completions.len() == 3);
    assert_eq!(disconnected(&pair.target), None);
}

#[test]
fn many_operations_of_both_directions_interleave() {
    let mut pair = Pair::new();
    let rounds = 3000_u64;
    let depth = 32_u64;
    let size = 4096_u32;
    let at = |i: u64| usize::try_from(i % depth).unwrap() * 4096;
    for i in 0..depth {
        let room = pair.target.sge(4 << 20, 64);
        pair.target_qp.post_recv(i, &[room]).unwrap();
        pair.host_qp
            .post_recv(i, &[pair.host.sge(5 << 20, 64)])
            .unwrap();
    }
    let bytes = pattern(3, 4096 * usize::try_from(depth).unwrap());
    pair.target.write(0, &bytes);
    let (mut asked, mut answered) = (0, 0);
    while answered < rounds {
        while asked < rounds && asked < answered + depth {
            let capsule = [pair.host.sge(6 << 20, 64)];
            let mut wr = send(asked, &capsule);
            wr.signaled = false;
            if pair.host_qp.post_send(&wr).is_err() {
                break;
            }
            asked += 1;
        }
        pair.host_qp.ring_doorbell();
        pair.host.turn();
        pair.target.turn();
        for done in std::mem::take(&mut pair.target.completions) {
            assert_eq!(done.status, WcStatus::Success);
            if done.opcode != WcOpcode::Recv {
                continue;
            }
            let slot = done.wr_id;
            let room = pair.target.sge(4 << 20, 64);
            pair.target_qp.post_recv(slot + depth, &[room]).unwrap();
            let to = Remote {
                addr: pair.host.mr.addr() + at(slot) as u64,
                rkey: pair.host.mr.rkey(),
            };
            let data = [pair.target.sge(at(slot), size)];
            let mut write = wr(slot, SendOp::Write(to), &data);
            write.signaled = false;
            pair.target_qp.post_send(&write).unwrap();
            let answer = [pair.target.sge(7 << 20, 16)];
            let mut response = send(slot, &answer);
            response.signaled = slot % 2 == 0;
            pair.target_qp.post_send(&response).unwrap();
        }
        pair.target_qp.ring_doorbell();
        for done in std::mem::take(&mut pair.host.completions) {
            assert_eq!(
                (done.status, done.opcode),
                (WcStatus::Success, WcOpcode::Recv)
            );
            assert_eq!((done.wr_id, done.byte_len), (answered, 16));
            let slot = at(answered);
            assert!(
                pair.host.read(slot, 4096) == bytes[slot..slot + 4096],
                "op {answered}"
            );
            pair.host.write(slot, &[0; 4096]);
            let room = pair.host.sge(5 << 20, 64);
            pair.host_qp.post_recv(answered + depth, &[room]).unwrap();
            answered += 1;
        }
    }
}
