//! `[metrics]`.

use capstan_config::{Config, Metrics};

fn with(keys: &str) -> Result<Config, String> {
    let text = format!(
        "[metrics]\n{keys}\n[[listener]]\naddress = \"127.0.0.1\"\n[[subsystem]]\nnqn = \"a\"\n\
         allow_any_host = true\n[[subsystem.namespace]]\nram = 4096\n"
    );
    Config::from_toml(&text).map_err(|error| error.to_string())
}

fn metrics(listen: &str, sample: u32) -> Metrics {
    Metrics {
        listen: Some(listen.parse().unwrap()),
        sample,
    }
}

#[test]
fn an_address_with_and_without_a_port_is_taken_and_none_is_the_default() {
    let read = |keys: &str| with(keys).unwrap().metrics;
    assert_eq!(read(""), Metrics::default());
    assert_eq!(Metrics::default().listen, None);
    assert_eq!(
        read("listen = \"127.0.0.1\""),
        metrics("127.0.0.1:9899", 64)
    );
    assert_eq!(read("listen = \"::1\""), metrics("[::1]:9899", 64));
    let all = read("listen = \"[::]:80\"\nsample = 0");
    assert_eq!(all, metrics("[::]:80", 0));
}

#[test]
fn what_is_no_such_address_says_what_is() {
    for (keys, expected) in [
        (
            "listen = \"here\"",
            "line 2: metrics.listen: \"here\" is not allowed; allowed: ADDRESS:PORT of this machine, such as \
             \"127.0.0.1:9899\"",
        ),
        (
            "listen = \"127.0.0.1:70000\"",
            "has port 70000, expected 0 to 65535",
        ),
        (
            "listen = \"224.0.0.1:80\"",
            "is not the address of one machine",
        ),
        (
            "listen = \"127.0.0.1:4420\"",
            "a port that no [[listener]] has there, as 127.0.0.1:4420 does",
        ),
        (
            "sample = 1000001",
            "metrics.sample: 1000001 is not allowed; allowed: 0 to 1000000",
        ),
        ("port = 9899", "metrics.port"),
    ] {
        let error = with(keys).unwrap_err();
        assert!(error.contains(expected), "{keys}: {error}");
    }
}

#[test]
fn what_is_written_out_says_the_same() {
    for keys in [
        "",
        "listen = \"127.0.0.1\"",
        "sample = 7",
        "listen = \"[::1]:1\"\nsample = 0",
    ] {
        let config = with(keys).unwrap();
        let again = Config::from_toml(&config.complete(2).to_toml()).unwrap();
        assert_eq!(again.metrics, config.metrics, "{keys}");
    }
}
