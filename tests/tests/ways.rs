//! Volumes in memory over each way bytes take between two ends on one machine: what the target
//! sends from where it is, and stores from where it has come, is what was written, and no LBA is
//! ever a part of one write and a part of another.

use capstan_initiator::{Completion, DirectQueue, Io, Op};
use capstan_rdma::iwarp::{Config, CrcUse, Provider};
use capstan_tests::host::options;
use capstan_tests::target::{SUBNQN, TestTarget};

const LBA_BYTES: usize = 512;
const LBAS: usize = 16_384;
const LBAS_MAX: usize = 512;
const DEPTH: usize = 24;
const COMMANDS: usize = 4000;
const RAM: u32 = 1;
const NULL: u32 = 2;

/// A command in flight.
struct Command {
    nsid: u32,
    lba: usize,
    lbas: usize,
    /// What a write puts into each LBA.
    value: Option<u8>,
    /// What a read may find in each LBA.
    allowed: Vec<Vec<u8>>,
}

impl Command {
    fn overlap(&self, other: &Self) -> std::ops::Range<usize> {
        if self.nsid != other.nsid {
            return 0..0;
        }
        self.lba.max(other.lba)..(self.lba + self.lbas).min(other.lba + other.lbas)
    }
}

/// What the namespaces hold, and the commands in flight by token.
struct Model {
    random: u64,
    ram: Vec<u8>,
    in_flight: Vec<Option<Command>>,
}

impl Model {
    fn below(&mut self, bound: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        usize::try_from(self.random % bound as u64).unwrap()
    }

    /// Another command: of a page mostly, sometimes of anything; never a write where another one is
    /// under way.
    fn command(&mut self) -> Command {
        loop {
            let (lba, lbas) = match self.below(3) {
                0 => {
                    let lbas = 1 + self.below(LBAS_MAX);
                    (self.below(LBAS - lbas), lbas)
                }
                _ => (self.below(LBAS / 8) * 8, 8),
            };
            let nsid = if self.below(4) == 0 { NULL } else { RAM };
            let value = (self.below(2) == 0).then(|| u8::try_from(self.below(255) + 1).unwrap());
            let mut command = Command {
                nsid,
                lba,
                lbas,
                value,
                allowed: Vec::new(),
            };
            let under_way = || self.in_flight.iter().flatten();
            let meets =
                |other: &Command| other.value.is_some() && !command.overlap(other).is_empty();
            if value.is_some() && under_way().any(meets) {
                continue;
            }
            if value.is_none() {
                command.allowed = vec![vec![0]; lbas];
                if nsid == RAM {
                    let now = self.ram[lba..lba + lbas].iter().map(|value| vec![*value]);
                    command.allowed = now.collect();
                    for other in under_way() {
                        for at in command.overlap(other) {
                            command.allowed[at - lba].extend(other.value);
                        }
                    }
                }
            }
            return command;
        }
    }

    /// The command is under way: reads may find what it writes.
    fn begin(&mut self, token: usize, command: Command) {
        if let (Some(value), RAM) = (command.value, command.nsid) {
            for read in self.in_flight.iter_mut().flatten() {
                if read.value.is_none() {
                    for at in command.overlap(read) {
                        read.allowed[at - read.lba].push(value);
                    }
                }
            }
        }
        self.in_flight[token] = Some(command);
    }

    fn end(&mut self, token: usize, data: &[u8], way: &str) {
        let command = self.in_flight[token].take().expect("one in flight");
        let lbas = command.lba..command.lba + command.lbas;
        match command.value {
            Some(value) if command.nsid == RAM => self.ram[lbas].fill(value),
            Some(_) => {}
            None => {
                for ((lba, allowed), bytes) in
                    lbas.zip(&command.allowed).zip(data.chunks(LBA_BYTES))
                {
                    let (first, nsid) = (bytes[0], command.nsid);
                    assert!(
                        bytes.iter().all(|byte| *byte == first),
                        "{way}, namespace {nsid}: LBA {lba} is of two writes"
                    );
                    assert!(
                        allowed.contains(&first),
                        "{way}, namespace {nsid}: LBA {lba} is {first}, expected one of {allowed:?}"
                    );
                }
            }
        }
    }
}

fn submit(queue: &mut DirectQueue, model: &mut Model, token: usize, ended: Option<Completion>) {
    let command = model.command();
    let buffer = ended.and_then(|ended| ended.buffer);
    let len_bytes = u32::try_from(LBAS_MAX * LBA_BYTES).unwrap();
    let mut buffer = buffer.unwrap_or_else(|| queue.take(len_bytes).expect("memory for data"));
    let (slba, nlb) = (command.lba as u64, u32::try_from(command.lbas).unwrap());
    let fua = false;
    let op = match command.value {
        Some(value) => {
            buffer.copy_from(0, &vec![value; command.lbas * LBA_BYTES]);
            Op::Write { slba, nlb, fua }
        }
        None => Op::Read { slba, nlb },
    };
    let nsid = command.nsid;
    model.begin(token, command);
    let taken = queue.submit(token as u64, Io { nsid, op }, Some(buffer));
    taken.expect("room for a command");
}

fn run(way: &str, reactors: u32, config: Config) {
    let target = TestTarget::start(&format!(
        "[target]\nreactors = {reactors}\n\
         [[listener]]\naddress = \"127.0.0.1\"\nport = 0\n\
         [[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nram = \"8MiB\"\nlba = 512\n\
         [[subsystem.namespace]]\nnull = \"8MiB\"\nlba = 512\n"
    ));
    let mut options = options(target.addresses[0], 1);
    options.data_memory_bytes = DEPTH * LBAS_MAX * LBA_BYTES;
    let manager = Provider::new(config).unwrap().connection_manager().unwrap();
    let mut queue = DirectQueue::connect_through(&options, manager).unwrap();
    let mut model = Model {
        random: 0x9E37_79B9_7F4A_7C15,
        ram: vec![0; LBAS],
        in_flight: (0..DEPTH).map(|_| None).collect(),
    };
    for token in 0..DEPTH {
        submit(&mut queue, &mut model, token, None);
    }
    let mut data = vec![0; LBAS_MAX * LBA_BYTES];
    for done in 0..COMMANDS {
        let ended = queue.wait(None).expect("commands are in progress");
        ended.result.as_ref().expect("no command fails");
        let token = usize::try_from(ended.token).unwrap();
        ended
            .buffer
            .as_ref()
            .expect("its data")
            .copy_to(0, &mut data);
        model.end(token, &data, way);
        if done < COMMANDS - DEPTH {
            submit(&mut queue, &mut model, token, Some(ended));
        }
    }
    assert_eq!(queue.in_progress(), 0);
    queue.close();
    target.stop();
}

#[test]
fn data_is_whole_through_shared_memory() {
    run("shared memory", 1, Config::default());
    run("shared memory, two reactors", 2, Config::default());
}

#[test]
fn data_is_whole_over_tcp() {
    for (crc, way) in [
        (CrcUse::BetweenMachines, "TCP"),
        (CrcUse::Always, "TCP with CRC32c"),
    ] {
        for reactors in [1, 2] {
            let config = Config {
                same_host: false,
                crc,
                ..Config::default()
            };
            run(&format!("{way}, {reactors} reactors"), reactors, config);
        }
    }
}
