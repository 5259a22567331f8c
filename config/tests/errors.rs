//! What an operator reads when a configuration is wrong, word for word.

use capstan_config::{Config, ConfigError, ProblemKind};

/// A valid listener and subsystem to put a mistake into.
const LISTENER: &str = "[[listener]]\naddress = \"127.0.0.1\"\n";
const SUBSYSTEM: &str =
    "[[subsystem]]\nnqn = \"nqn.2026-11.com.example:a\"\nallow_any_host = true\n";
const NAMESPACE: &str = "[[subsystem.namespace]]\nram = \"1MiB\"\n";

fn error(text: &str) -> String {
    match Config::from_toml(text) {
        Ok(config) => panic!("accepted: {config:?}"),
        Err(error) => error.to_string(),
    }
}

/// The problem of a valid file with `head` before it.
fn error_with(head: &str) -> String {
    error(&format!("{head}\n{LISTENER}{SUBSYSTEM}{NAMESPACE}"))
}

fn listener_error(keys: &str) -> String {
    error(&format!("[[listener]]\n{keys}\n{SUBSYSTEM}{NAMESPACE}"))
}

fn subsystem_error(keys: &str) -> String {
    error(&format!("{LISTENER}[[subsystem]]\n{keys}\n{NAMESPACE}"))
}

fn namespace_error(keys: &str) -> String {
    error(&format!(
        "{LISTENER}{SUBSYSTEM}[[subsystem.namespace]]\n{keys}\n"
    ))
}

#[test]
fn the_file_the_mistakes_are_put_into_is_valid() {
    Config::from_toml(&format!("{LISTENER}{SUBSYSTEM}{NAMESPACE}")).unwrap();
}

#[test]
fn a_path_with_what_no_path_has_is_told_from_a_relative_one() {
    let said = namespace_error("path = \"/srv/a\\u0000b\"");
    assert!(said.contains("allowed: a path without NUL"), "{said}");
    let said = namespace_error("path = \"srv/a\"");
    assert!(said.contains("allowed: an absolute path"), "{said}");
}

#[test]
fn an_unknown_key_names_the_nearest() {
    assert_eq!(
        error_with("[target]\nreactor = 1\n"),
        "line 2: target.reactor: there is no such key; did you mean `reactors`?"
    );
    assert!(
        namespace_error("ram = \"1MiB\"\nreadonly = true").contains("did you mean `read_only`?")
    );
    assert!(listener_error("adress = \"::1\"").contains("did you mean `address`?"));
    assert!(error_with("[qeues]\n").contains("did you mean `queues`?"));
    assert_eq!(
        error_with("[storage]\n"),
        "line 1: storage: there is no such key; expected one of target, queues, listener, subsystem, \
         nfs, export, metrics"
    );
    // A key is text of the file, and as long as it likes.
    let odd = format!("\"{}\\u001b[2J\" = 1", "k".repeat(100));
    let shown = "k".repeat(64);
    assert!(error_with(&odd).starts_with(&format!("line 1: {shown}…: there is no such key")));
    assert!(error_with("\"\\u001b\" = 1").contains("line 1: \\u{1b}: there is no such key"));
}

#[test]
fn a_listener_has_one_transport_at_least_and_none_that_there_is_not() {
    let allowed = "allowed: \"rdma\", \"tcp\" or both";
    for (written, named) in [("[]", "[]"), ("[\"tcp\", \"udp\"]", "\"udp\"")] {
        let text = format!("address = \"127.0.0.1\"\ntransports = {written}");
        let error = listener_error(&text);
        let expected = format!("line 3: listener[0].transports: {named} is not allowed; {allowed}");
        assert!(error.contains(&expected), "{error}");
    }
    for (written, rdma, tcp) in [
        ("", true, true),
        ("transports = [\"rdma\"]", true, false),
        ("transports = [\"tcp\"]", false, true),
        ("transports = [\"tcp\", \"rdma\"]", true, true),
    ] {
        let text = format!("{LISTENER}{written}\n{SUBSYSTEM}{NAMESPACE}");
        let config = Config::from_toml(&text).unwrap();
        let transports = config.listeners[0].transports;
        assert_eq!((transports.rdma, transports.tcp), (rdma, tcp), "{written}");
    }
}

#[test]
fn what_has_no_effect_beside_nvme_tcp_alone_is_a_mistake() {
    let tcp = "address = \"127.0.0.1\"\ntransports = [\"tcp\"]";
    for provider in ["verbs", "iwarp"] {
        let error = listener_error(&format!("{tcp}\nprovider = \"{provider}\""));
        let words = "line 4: listener[0].provider: has no effect on a listener without NVMe/RDMA; leave it out";
        assert_eq!(error, words);
    }
    let listener = format!("[[listener]]\n{tcp}\n{SUBSYSTEM}{NAMESPACE}");
    let shared = format!("[target]\nshared_receive_queue = true\n{listener}");
    let error = Config::from_toml(&shared).unwrap_err().to_string();
    let words = "line 2: target.shared_receive_queue: has no effect where no listener has NVMe/RDMA; leave it out";
    assert_eq!(error, words);
    for allowed in ["provider = \"auto\"", ""] {
        let text = listener.replacen("transports", &format!("{allowed}\ntransports"), 1);
        Config::from_toml(&text).unwrap();
    }
    let twice = listener_error("address = \"127.0.0.1\"\ntransports = [\"tcp\", \"tcp\"]");
    assert_eq!(
        twice,
        "line 3: listener[0].transports: \"tcp\" again is not allowed; allowed: each once"
    );
}

#[test]
fn an_unknown_word_names_the_nearest() {
    let text = listener_error("address = \"127.0.0.1\"\nprovider = \"verb\"");
    assert_eq!(
        text,
        "line 3: listener[0].provider: unknown word `verb`, expected one of `auto`, `verbs`, `iwarp`; \
         did you mean `verbs`?"
    );
}

#[test]
fn a_text_in_place_of_a_list_says_how_the_list_is_written() {
    let error = listener_error("address = \"127.0.0.1\"\ntransports = \"tcp\"");
    assert_eq!(
        error,
        "line 3: listener[0].transports: is a list; write transports = [\"tcp\"]"
    );
    let error = subsystem_error("nqn = \"a\"\nallowed_hosts = \"nqn.2026-11.com.example:h\"");
    let words = "allowed_hosts: is a list; write allowed_hosts = [\"nqn.2026-11.com.example:h\"]";
    assert!(error.contains(words), "{error}");
}

#[test]
fn a_value_of_the_wrong_type_says_what_it_should_be() {
    for (head, words) in [
        (
            "[target]\nreactors = \"many\"",
            "line 2: target.reactors: invalid value: string \"many\", expected \"auto\", a number of \
             reactors, or a list of cores such as [0, 2]",
        ),
        (
            "[target]\nmemory_budget = \"1GB\"",
            "line 2: target.memory_budget: `1GB` has a decimal unit; write `1GiB`, or plain bytes",
        ),
        (
            "[queues]\ndepth_max = -1",
            "line 2: queues.depth_max: invalid value: integer `-1`, expected a whole number from 0 on",
        ),
        (
            "[target]\nmodel = [\"a\"]",
            "line 2: target.model: invalid type: an array, expected a string",
        ),
    ] {
        assert_eq!(error_with(head), words);
    }
    assert!(error("x = ").contains("line 1"));
}

#[test]
fn numbers_out_of_bounds_name_the_bounds() {
    for (head, words) in [
        (
            "[queues]\nio_queues_max = 129",
            "line 2: queues.io_queues_max: 129 is not allowed; allowed: 1 to 128",
        ),
        (
            "[queues]\ndepth_max = 2048",
            "line 2: queues.depth_max: 2048 is not allowed; allowed: 16 to 1024",
        ),
        (
            "[target]\nhosts_max = 0",
            "line 2: target.hosts_max: 0 is not allowed; allowed: 1 to 4096",
        ),
        (
            "[target]\nvendor_id = 0xFFFF",
            "line 2: target.vendor_id: 65535 is not allowed; allowed: 0 to 65534",
        ),
        (
            "[target]\nsubsystem_vendor_id = 65536",
            "line 2: target.subsystem_vendor_id: 65536 is not allowed; allowed: 0 to 65534",
        ),
        (
            "[target]\nreactors = 0",
            "line 2: target.reactors: 0 is not allowed; allowed: 1 to 256",
        ),
        (
            "[target]\nreactors = [0, 0]",
            "line 2: target.reactors: core 0 is not allowed; allowed: each core once, 0 to 4095",
        ),
        (
            "[target]\nreactors = []",
            "line 2: target.reactors: [] is not allowed; allowed: \"auto\", or 1 to 256 cores",
        ),
        (
            "[target]\nspin = \"50\"",
            "line 2: target.spin: \"50\" is not allowed; allowed: 0s to 100ms with a unit, such as \"50us\"",
        ),
        (
            "[target]\nmodel = \"\"",
            "line 2: target.model: \"\" is not allowed; allowed: 1 to 40 printable ASCII characters, \
             no space at either end",
        ),
        (
            "[target]\nserial_prefix = \"FAR-TOO-LONG\"",
            "line 2: target.serial_prefix: \"FAR-TOO-LONG\" is not allowed; allowed: 1 to 8 printable \
             ASCII characters, no space at either end",
        ),
    ] {
        assert_eq!(error_with(head), words);
    }
}

#[test]
fn a_budget_too_small_shows_the_arithmetic() {
    assert_eq!(
        error_with("[target]\nmemory_budget = \"4MiB\"\nreactors = 2"),
        "line 2: target.memory_budget: 4 MiB is too small: 6 MiB needed for one host (2 \
         reactor(s) × 2 transfers × 1 MiB + Admin Queue 266.5 KiB + I/O queue 1042 KiB + hosts not \
         known yet 186.9 KiB); raise target.memory_budget, or lower queues.depth_max or \
         target.reactors"
    );
}

#[test]
fn an_empty_file_says_what_is_needed() {
    assert_eq!(
        error(""),
        "listener: missing; write a [[listener]] with `address = \"127.0.0.1\"`\n\
         subsystem: missing; write a [[subsystem]] with an nqn and a [[subsystem.namespace]]; or, for NFS \
         clients, an [[export]] with path and clients, and `addresses` below [nfs]"
    );
}

#[test]
fn listeners_that_cannot_be() {
    for (keys, words) in [
        (
            "port = 1",
            "line 1: listener[0].address: missing; write `address = \"…\"`, an IPv4 or IPv6 address, 0.0.0.0 or ::",
        ),
        (
            "address = \"storage.example.com\"",
            "line 2: listener[0].address: `storage.example.com` is not an address; write an IPv4 or \
             IPv6 address of this machine, 0.0.0.0 or :: for all of them (names are not resolved)",
        ),
        (
            "address = \"10.0.0.1:4420\"",
            "line 2: listener[0].address: \"10.0.0.1:4420\" is not allowed; allowed: an address \
             alone; the port goes to `port = …`",
        ),
        (
            "address = \"::1\"\nport = 65536",
            "line 3: listener[0].port: 65536 is not allowed; allowed: 0 to 65535",
        ),
        (
            "address = \"::1\"\n[[listener]]\naddress = \"0:0::1\"",
            "line 3: listener[1]: [::1]:4420 is already used at line 1: listener[0]",
        ),
        (
            "address = \"0.0.0.0\"\n[[listener]]\naddress = \"10.0.0.1\"",
            "line 3: listener[1]: 10.0.0.1:4420 and 0.0.0.0:4420 at line 1: listener[0] overlap; remove the one or the other",
        ),
        (
            "address = \"10.0.0.1\"\n[[listener]]\naddress = \"0.0.0.0\"",
            "line 3: listener[1]: 0.0.0.0:4420 and 10.0.0.1:4420 at line 1: listener[0] overlap; remove the one or the other",
        ),
    ] {
        assert_eq!(listener_error(keys), words);
    }
}

#[test]
fn subsystems_that_cannot_be() {
    for (keys, words) in [
        (
            "nqn = \"a\\tdisk\"\nallow_any_host = true",
            "line 4: subsystem[0].nqn: `a\\tdisk`: byte 1 of the NQN is a control character",
        ),
        (
            "nqn = \"nqn.2014-08.org.nvmexpress.discovery\"\nallow_any_host = true",
            "line 4: subsystem[0].nqn: nqn.2014-08.org.nvmexpress.discovery is not allowed; allowed: \
             any NQN but the discovery subsystem's",
        ),
        (
            "allow_any_host = true",
            "line 3: subsystem[0].nqn: missing; write `nqn = \"nqn.yyyy-mm.reverse.domain:name\"`",
        ),
        (
            "nqn = \"nqn.2026-11.com.example:a\"",
            "line 3: subsystem[0].allowed_hosts: no host may connect; list host NQNs in \
             allowed_hosts (the log names a host that is refused, and /etc/nvme/hostnqn of the host has \
             its own), or write `allow_any_host = true` to let in every host that reaches the listener",
        ),
        (
            "nqn = \"nqn.2026-11.com.example:a\"\nallowed_hosts = [\"\"]",
            "line 5: subsystem[0].allowed_hosts: ``: the NQN is empty, expected 1 to 223 bytes",
        ),
        (
            "nqn = \"nqn.2026-11.com.example:a\"\nallow_any_host = true\n\
             allowed_hosts = [\"nqn.2026-11.com.example:h\"]",
            "line 5: subsystem[0].allow_any_host: contradicts allowed_hosts, which would have no \
             effect; remove one of them",
        ),
        (
            "nqn = \"nqn.2026-11.com.example:a\"\nallow_any_host = true\n\
             serial = \"123456789012345678901\"",
            "line 6: subsystem[0].serial: \"123456789012345678901\" is not allowed; allowed: 1 to 20 \
             printable ASCII characters, no space at either end",
        ),
    ] {
        assert_eq!(subsystem_error(keys), words);
    }
    for (length_bytes, is_taken) in [(223, true), (224, false)] {
        let name = "n".repeat(length_bytes);
        let problem = format!("`{name}`: the NQN has 224 bytes, expected 1 to 223");
        for keys in [
            format!("nqn = \"{name}\"\nallow_any_host = true"),
            format!("nqn = \"disk\"\nallowed_hosts = [\"{name}\"]"),
        ] {
            let text = format!("{LISTENER}[[subsystem]]\n{keys}\n{NAMESPACE}");
            match Config::from_toml(&text) {
                Ok(_) => assert!(is_taken, "{keys}"),
                Err(error) => assert!(!is_taken && error.to_string().contains(&problem), "{error}"),
            }
        }
    }
    // allow_any_host must be true, not only there.
    assert!(
        subsystem_error("nqn = \"nqn.2026-11.com.example:a\"\nallow_any_host = false")
            .contains("no host may connect")
    );
}

#[test]
fn namespaces_that_cannot_be() {
    for (keys, words) in [
        (
            "nsid = 1",
            "line 6: subsystem[0].namespace[0]: needs exactly one of path, ram and null; there is none",
        ),
        (
            "ram = \"1MiB\"\nnull = \"1MiB\"",
            "line 6: subsystem[0].namespace[0]: needs exactly one of path, ram and null; there are \
             several",
        ),
        (
            "ram = \"1MiB\"\nlba = 1024",
            "line 8: subsystem[0].namespace[0].lba: 1024 is not allowed; allowed: 512 or 4096",
        ),
        (
            "ram = 1536\nlba = 4096",
            "line 7: subsystem[0].namespace[0].ram: a size of 1536 bytes is not a multiple of the LBA size, 4096 \
             bytes; write 4096 bytes, or `lba = 512` for LBAs of 512 bytes",
        ),
        (
            "null = 1000",
            "line 7: subsystem[0].namespace[0].null: a size of 1000 bytes is not a multiple of the LBA size, \
             4096 bytes; write 4096 bytes",
        ),
        (
            "null = 1000\nlba = 512",
            "line 7: subsystem[0].namespace[0].null: a size of 1000 bytes is not a multiple of the LBA size, \
             512 bytes; write 1024 bytes",
        ),
        (
            "null = 0",
            "line 7: subsystem[0].namespace[0].null: 0 is not allowed; allowed: at least one LBA",
        ),
        (
            "path = \"disk.img\"",
            "line 7: subsystem[0].namespace[0].path: \"disk.img\" is not allowed; allowed: an \
             absolute path; the daemon has no folder to start from",
        ),
        (
            "ram = \"1MiB\"\nnsid = 1025",
            "line 8: subsystem[0].namespace[0].nsid: 1025 is not allowed; allowed: 1 to 1024",
        ),
        (
            "ram = \"1MiB\"\ndirect = true",
            "line 8: subsystem[0].namespace[0].direct: has no meaning for a ram namespace; remove it",
        ),
        (
            "path = \"/a\"\nuuid = \"1\"",
            "line 8: subsystem[0].namespace[0].uuid: \"1\" is not allowed; allowed: a UUID that is not \
             all zeroes (`uuidgen` makes one); without this key one is derived from the NQN and NSID",
        ),
        (
            "ram = \"1MiB\"\nuuid = \"2d9a6f34-9a43-4d0b-8a64-8f9b1d0c7e55\"",
            "line 8: subsystem[0].namespace[0].uuid: a ram namespace has a new one each time it is \
             made: what was written to the last one is gone, and hosts must not take it for the same; \
             remove it",
        ),
        (
            "null = \"1MiB\"\nnguid = \"2d9a6f349a434d0b8a648f9b1d0c7e55\"",
            "line 8: subsystem[0].namespace[0].nguid: a null namespace has a new one each time it is \
             made: what was written to the last one is gone, and hosts must not take it for the same; \
             remove it",
        ),
        (
            "path = \"/a\"\nnguid = \"00000000000000000000000000000000\"",
            "line 8: subsystem[0].namespace[0].nguid: \"00000000000000000000000000000000\" is not \
             allowed; allowed: 32 hexadecimal digits, not all zeroes; without this key it is the UUID",
        ),
    ] {
        assert_eq!(namespace_error(keys), words);
    }
}

/// What stands in for it would be said to be used twice.
#[test]
fn what_is_not_allowed_is_not_used_either() {
    let namespaces = "[[subsystem.namespace]]\nram = 4096\nnsid = 0\n[[subsystem.namespace]]\nram = 4096\nnsid = 1\n";
    assert_eq!(
        error(&format!("{LISTENER}{SUBSYSTEM}{namespaces}")),
        "line 8: subsystem[0].namespace[0].nsid: 0 is not allowed; allowed: 1 to 1024"
    );
    let listener = |port| format!("[[listener]]\naddress = \"::1\"\nport = {port}\n");
    let (wrong, right) = (listener(65536), listener(4420));
    assert_eq!(
        error(&format!("{wrong}{right}{SUBSYSTEM}{NAMESPACE}")),
        "line 3: listener[0].port: 65536 is not allowed; allowed: 0 to 65535"
    );
}

#[test]
fn what_must_be_unique_names_the_first_use() {
    let uuid = "uuid = \"2d9a6f34-9a43-4d0b-8a64-8f9b1d0c7e55\"";
    for (first, second, words) in [
        (
            "ram = 4096\nnsid = 3",
            "ram = 4096\nnsid = 3",
            "line 11: subsystem[0].namespace[1].nsid: 3 is already used at line 8: \
             subsystem[0].namespace[0].nsid",
        ),
        (
            &*format!("path = \"/a\"\n{uuid}"),
            &*format!("path = \"/b\"\n{uuid}"),
            "line 11: subsystem[0].namespace[1].uuid: 2d9a6f34-9a43-4d0b-8a64-8f9b1d0c7e55 is \
             already used at line 8: subsystem[0].namespace[0].uuid",
        ),
        (
            "path = \"/dev/vda\"\nnsid = 3",
            "path = \"//dev/./vda\"",
            "line 10: subsystem[0].namespace[1].path: /dev/vda is already used at line 7: \
             subsystem[0].namespace[0].path",
        ),
    ] {
        let keys = format!("{first}\n[[subsystem.namespace]]\n{second}");
        assert_eq!(namespace_error(&keys), words);
    }
    let twice = format!("{LISTENER}{SUBSYSTEM}{NAMESPACE}{SUBSYSTEM}{NAMESPACE}");
    assert_eq!(
        error(&twice),
        "line 9: subsystem[1].nqn: nqn.2026-11.com.example:a is already used at line 4: \
         subsystem[0].nqn"
    );
}

#[test]
fn names_that_differ_in_the_case_of_a_uuid_are_the_same_name() {
    let lower = "nqn.2014-08.org.nvmexpress:uuid:0a6d2c9e-55f1-4a37-8a5c-52b6c4a5f7a1";
    let upper = "nqn.2014-08.org.nvmexpress:uuid:0A6D2C9E-55F1-4A37-8A5C-52B6C4A5F7A1";
    let subsystem = |nqn: &str| format!("[[subsystem]]\nnqn = \"{nqn}\"\nallow_any_host = true\n");
    let twice = [
        LISTENER,
        &subsystem(lower),
        NAMESPACE,
        &subsystem(upper),
        NAMESPACE,
    ]
    .concat();
    assert_eq!(
        error(&twice),
        format!("line 9: subsystem[1].nqn: {upper} is already used at line 4: subsystem[0].nqn")
    );
    let hosts = format!("nqn = \"a\"\nallowed_hosts = [\n\"{lower}\",\n\"{upper}\"]");
    assert_eq!(
        subsystem_error(&hosts),
        format!(
            "line 7: subsystem[0].allowed_hosts: {upper} is already used at line 6: \
             subsystem[0].allowed_hosts"
        )
    );
}

#[test]
fn every_problem_is_reported_in_one_go() {
    let text =
        "[target]\nspin = \"1h\"\n[[listener]]\naddress = \"x\"\n[[subsystem]]\nnqn = \"\"\n";
    let Err(ConfigError::Invalid(problems)) = Config::from_toml(text) else {
        panic!("not a list of problems")
    };
    let lines: Vec<_> = problems.iter().map(|problem| problem.at.line).collect();
    assert_eq!(lines, [Some(2), Some(4), Some(5), Some(6)]);
    assert!(matches!(
        problems.iter().nth(2).unwrap().kind,
        ProblemKind::NoHosts
    ));
}

#[test]
fn a_wrong_key_or_type_hides_no_other_mistake() {
    let file = "[target]\nreactor = 0\nspin = 50\nmemory_budget = \"1GB\"\nlog = \"warning\"\n\
         [[listener]]\nadress = \"x\"\nport = \"many\"\nprovider = \"verb\"\nzone = \"eth0\"\n\
         [[subsystem]]\nnqn = \"\"\nallowed_hosts = [5]\nserial = \"\"\n\
         [[subsystem.namespace]]\nram = \"1MB\"\n\
         [[subsystem.namespace]]\npath = \"a\"\nreadonly = \"yes\"\n\
         [[subsystem.namespace]]\nnull = 1536\nlba = true\nnsid = 0\n";
    let address = "an IPv4 or IPv6 address of this machine, 0.0.0.0 or :: for all of them (names are not \
                   resolved)";
    assert_eq!(
        error(file).lines().collect::<Vec<_>>(),
        [
            "line 2: target.reactor: there is no such key; did you mean `reactors`?",
            "line 2: target.reactors: 0 is not allowed; allowed: 1 to 256",
            "line 3: target.spin: invalid type: integer `50`, expected a string with a unit, such as \"50us\"",
            "line 4: target.memory_budget: `1GB` has a decimal unit; write `1GiB`, or plain bytes",
            "line 5: target.log: unknown word `warning`, expected one of `error`, `warn`, `info`, `debug`, \
             `trace`; did you mean `warn`?",
            "line 7: listener[0].adress: there is no such key; did you mean `address`?",
            &format!("line 7: listener[0].address: `x` is not an address; write {address}"),
            "line 8: listener[0].port: invalid type: string \"many\", expected a whole number from 0 on",
            "line 9: listener[0].provider: unknown word `verb`, expected one of `auto`, `verbs`, `iwarp`; did \
             you mean `verbs`?",
            "line 10: listener[0].zone: there is no such key; expected one of address, port, provider, transports",
            "line 12: subsystem[0].nqn: ``: the NQN is empty, expected 1 to 223 bytes",
            "line 13: subsystem[0].allowed_hosts: invalid type: integer `5`, expected a string",
            "line 14: subsystem[0].serial: \"\" is not allowed; allowed: 1 to 20 printable ASCII characters, \
             no space at either end",
            "line 16: subsystem[0].namespace[0].ram: `1MB` has a decimal unit; write `1MiB`, or plain bytes",
            "line 18: subsystem[0].namespace[1].path: \"a\" is not allowed; allowed: an absolute path; the \
             daemon has no folder to start from",
            "line 19: subsystem[0].namespace[1].readonly: there is no such key; did you mean `read_only`?",
            "line 19: subsystem[0].namespace[1].read_only: invalid type: string \"yes\", expected a boolean",
            "line 22: subsystem[0].namespace[2].lba: invalid type: boolean `true`, expected a size such as \
             \"256MiB\" or a number of bytes",
            "line 23: subsystem[0].namespace[2].nsid: 0 is not allowed; allowed: 1 to 1024",
        ]
    );
}

#[test]
fn a_table_that_is_none_or_one_of_several_says_how_it_is_written() {
    let rest = format!("{LISTENER}{SUBSYSTEM}{NAMESPACE}");
    for (file, words) in [
        (
            format!("[listener]\nadress = \"::1\"\n{SUBSYSTEM}{NAMESPACE}"),
            "line 1: listener: there may be several, and each is a table; write [[listener]]\n\
             line 2: listener[0].adress: there is no such key; did you mean `address`?",
        ),
        (
            format!("listener = \"::1\"\n{SUBSYSTEM}{NAMESPACE}"),
            "line 1: listener: there may be several, and each is a table; write [[listener]]",
        ),
        (
            format!("listener = [\"::1\"]\n{SUBSYSTEM}{NAMESPACE}"),
            "line 1: listener[0]: is not a table; write [[listener]], and its keys below",
        ),
        (
            format!("[[target]]\nspin = \"0s\"\n{rest}"),
            "line 1: target: there is one, and it is a table; write [target], once",
        ),
        (
            format!("queues = 5\n{rest}"),
            "line 1: queues: there is one, and it is a table; write [queues], once",
        ),
        (
            format!("{LISTENER}{SUBSYSTEM}namespace = {{ ram = \"1MB\" }}\n"),
            "line 6: subsystem[0].namespace: there may be several, and each is a table; write \
             [[subsystem.namespace]]\n\
             line 6: subsystem[0].namespace[0].ram: `1MB` has a decimal unit; write `1MiB`, or plain bytes",
        ),
    ] {
        assert_eq!(error(&file), words);
    }
}

#[test]
fn so_many_wrong_types_that_nothing_is_said_about_the_rest() {
    let hosts = "5, ".repeat(40);
    let text = subsystem_error(&format!("nqn = \"\"\nallowed_hosts = [{hosts}]"));
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 32, "{text}");
    assert!(
        lines
            .iter()
            .all(|line| line.contains("allowed_hosts: invalid type")),
        "{text}"
    );
}
