//! A null namespace beside one that holds data: its reads are zeroes, whoever's bytes passed
//! through the target's memory before.

use capstan_config::Config;
use capstan_initiator::{Controller, Options};
use capstan_nvme_proto::nqn::{HostId, Nqn};
use capstan_target::serve::Running;

const SUBNQN: &str = "nqn.2026-11.org.example:null";

#[test]
fn reads_are_zeroes_whatever_passed_through_the_targets_memory() {
    // The least memory there can be: two transfers of 1 MiB use every buffer.
    let config = Config::from_toml(&format!(
        "[target]\nmemory_budget = \"5MiB\"\nreactors = 1\n\
         [[listener]]\naddress = \"127.0.0.1\"\nport = 0\n\
         [[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nram = \"8MiB\"\nlba = 512\n\
         [[subsystem.namespace]]\nnull = \"8MiB\"\nlba = 512\n"
    ))
    .unwrap();
    let running = Running::start(&config).unwrap();
    let mut options = Options::new(
        "127.0.0.1",
        Nqn::new(SUBNQN).unwrap(),
        Nqn::new("nqn.2026-11.org.example:tester").unwrap(),
        HostId([7; 16]),
    );
    options.trsvcid = running.addresses[0].port();
    let controller = Controller::connect(options).unwrap();
    let [ram, null] = [1, 2].map(|nsid| controller.volume_blocking(nsid).unwrap().blocking());
    let secret = vec![0x5a; 4 << 20];
    ram.write(0, &secret).unwrap();
    null.write(0, &secret).unwrap();
    for len in [
        512,
        4096,
        8192,
        128 << 10,
        (128 << 10) + 512,
        1 << 20,
        4 << 20,
    ] {
        let mut read = vec![0xee; len];
        ram.read(0, &mut read).unwrap();
        assert!(read == secret[..len], "{len} bytes of RAM");
        for offset in [0, (8 << 20) - len as u64] {
            let mut read = vec![0xee; len];
            null.read(offset, &mut read).unwrap();
            assert!(
                read.iter().all(|&byte| byte == 0),
                "{len} bytes at {offset}"
            );
        }
        // What a host compares with goes the way of the buffers.
        null.compare(0, &vec![0; len.min(4096)]).unwrap();
        null.compare(0, &secret[..len.min(4096)]).unwrap_err();
    }
    // The zeroes that are shared are still zeroes after a host's data has gone everywhere.
    ram.write(0, &secret).unwrap();
    let mut read = vec![0xee; 1 << 20];
    null.read(0, &mut read).unwrap();
    assert!(read.iter().all(|&byte| byte == 0));
    controller.close();
    drop((ram, null, controller));
    running.stop().unwrap();
}
