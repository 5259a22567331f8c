//! A null namespace beside one that holds data: its reads are zeroes, whoever's bytes passed
//! through the target's memory before.

use capstan_initiator::Controller;
use capstan_tests::host::options;
use capstan_tests::target::{SUBNQN, TestTarget};

#[test]
fn reads_are_zeroes_whatever_passed_through_the_targets_memory() {
    // The least memory there can be: two transfers of 1 MiB use every buffer.
    let target = TestTarget::start(&format!(
        "[target]\nmemory_budget = \"5MiB\"\nreactors = 1\n\
         [[listener]]\naddress = \"127.0.0.1\"\nport = 0\n\
         [[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nram = \"8MiB\"\nlba = 512\n\
         [[subsystem.namespace]]\nnull = \"8MiB\"\nlba = 512\n"
    ));
    let mut options = options(target.addresses[0], 1);
    // Room for more transfers than the target has.
    options.data_memory_bytes = 8 << 20;
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
    target.stop();
}
