//! `[[subsystem.ana]]`: groups of namespaces, and their states by listener.

use capstan_config::{AnaState, Config};

const HEAD: &str = "[[listener]]\naddress = \"192.0.2.10\"\n[[listener]]\naddress = \"2001:db8::1\"\nport = 4421\n\
                    [[subsystem]]\nnqn = \"nqn.2026-11.org.example:a\"\nallow_any_host = true\n\
                    [[subsystem.namespace]]\nnull = \"1MiB\"\nana_group = 2\n";

fn config(rest: &str) -> Result<Config, String> {
    Config::from_toml(&format!("{HEAD}{rest}")).map_err(|error| error.to_string())
}

fn table(group: &str, state: &str, listeners: &str) -> String {
    format!("[[subsystem.ana]]\ngroup = {group}\nstate = \"{state}\"\n{listeners}\n")
}

#[test]
fn a_state_is_that_of_the_listeners_it_names_or_of_all() {
    let all = AnaState::ALL.map(|state| {
        let config = config(&table("2", state.as_str(), "")).unwrap();
        let subsystem = &config.subsystems[0];
        assert_eq!(subsystem.namespaces[0].ana_group, 2);
        let states: Vec<_> = subsystem.ana.iter().map(|(key, of)| (*key, *of)).collect();
        assert_eq!(states, [((0, 2), state), ((1, 2), state)]);
        subsystem.ana_states().count()
    });
    assert_eq!(all, [0, 2, 2, 2, 2], "optimized is as without it");
    let one = table("2", "inaccessible", "listeners = [\"[2001:db8::1]:4421\"]");
    let other = table("2", "change", "listeners = [\"192.0.2.10:4420\"]");
    let config = config(&[one, other].concat()).unwrap();
    let states: Vec<_> = config.subsystems[0].ana_states().collect();
    let expected = [(0, 2, AnaState::Change), (1, 2, AnaState::Inaccessible)];
    assert_eq!(states, expected);
}

#[test]
fn contradictions_and_what_is_not_there_are_told() {
    for (tables, told) in [
        (
            table("2", "change", "") + &table("2", "change", "listeners = [\"192.0.2.10:4420\"]"),
            "line 16: subsystem[0].ana[1]: group 2 has a state through 192.0.2.10:4420 already, at line 12: \
             subsystem[0].ana[0]; take one of them out, or name other `listeners`",
        ),
        (
            table("2", "change", "listeners = [\"192.0.2.1:4420\"]"),
            "line 15: subsystem[0].ana[0].listeners: there is no listener \"192.0.2.1:4420\"; did you mean \
             \"192.0.2.10:4420\"?",
        ),
        (
            table("2", "change", "listeners = [\"eth0\"]"),
            "line 15: subsystem[0].ana[0].listeners: there is no listener \"eth0\"; expected addresses and ports of \
             [[listener]] tables: 192.0.2.10:4420, [2001:db8::1]:4421",
        ),
        (
            table("2", "change", "listeners = []"),
            "line 15: subsystem[0].ana[0].listeners: [] is not allowed; allowed: addresses and ports of listeners; left out, it \
             is all of them",
        ),
        (
            table("129", "change", ""),
            "line 13: subsystem[0].ana[0].group: 129 is not allowed; allowed: 1 to 128",
        ),
        (
            "[[subsystem.ana]]\nstate = \"change\"\n".to_owned(),
            "line 12: subsystem[0].ana[0].group: missing; write `group = …`, the `ana_group` of its namespaces",
        ),
        (
            "[[subsystem.ana]]\ngroup = 2\n".to_owned(),
            "line 12: subsystem[0].ana[0].state: missing; write `state = \"…\"`: optimized, non-optimized, inaccessible, \
             persistent-loss or change",
        ),
        (
            table("2", "non_optimized", ""),
            "line 14: subsystem[0].ana[0].state: unknown word `non_optimized`, expected one of `optimized`, \
             `non-optimized`, `inaccessible`, `persistent-loss`, `change`; did you mean `non-optimized`?\n\
             line 11: subsystem[0].ana[0].state",
        ),
        ("ana_group = 0\n".to_owned(), "duplicate key"),
    ] {
        let error = config(&tables).unwrap_err();
        assert!(
            error.contains(told.lines().next().unwrap()),
            "{error}\n{told}"
        );
    }
}

#[test]
fn a_group_without_a_namespace_is_taken_with_a_warning() {
    let config = config(&table("7", "inaccessible", "")).unwrap();
    let warnings = config.check_machine().unwrap();
    let said: Vec<_> = warnings.iter().map(ToString::to_string).collect();
    let expected = "subsystem[0].ana: group 7 has no namespace, and its state no effect: `ana_group = 7` in a \
                    [[subsystem.namespace]] of nqn.2026-11.org.example:a puts one there";
    assert!(said.iter().any(|said| said == expected), "{said:#?}");
}
