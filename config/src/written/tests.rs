use std::collections::BTreeSet;

use proptest::prelude::*;

use super::{EditError, Entry, EntryValue, Written};
use crate::{Access, Backing, Config, Nqn};

const FILE: &str = r#"# What the disks of the house are served by.

[target]
log = "info"    # more is too much

[[listener]]
address = "127.0.0.1"

# The first one.
[[subsystem]]
nqn = "nqn.2026-11.org.example:a"
allowed_hosts = [
    "nqn.2026-11.org.example:host-1",   # the old one
    "nqn.2026-11.org.example:host-2",
]

# Fast.
[[subsystem.namespace]]
ram = "1MiB"

[[subsystem.namespace]]
nsid = 7
null = "1GiB"   # for measuring

# The second one.
[[subsystem]]
nqn = "nqn.2026-11.org.example:b"
allow_any_host = true
namespace = [{ ram = "2MiB" }, { ram = "1MiB" }]

# Nothing below this line.
"#;

fn nqn(name: &str) -> Nqn {
    Nqn::new(&format!("nqn.2026-11.org.example:{name}")).unwrap()
}

fn written() -> Written {
    Written::of_text(FILE.to_owned())
}

fn text(value: &str) -> EntryValue {
    EntryValue::Text(value.to_owned())
}

/// The lines of `after` that are not in `before`, and the other way round.
fn lines(before: &str, after: &str) -> (Vec<String>, Vec<String>) {
    let of = |one: &str, other: &str| {
        let there: BTreeSet<_> = other.lines().collect();
        let alone = one.lines().filter(|line| !there.contains(line));
        alone.map(ToOwned::to_owned).collect()
    };
    (of(after, before), of(before, after))
}

#[test]
fn a_namespace_comes_behind_the_last_one_of_its_subsystem() {
    let mut written = written();
    let entry: Entry = vec![("nsid", EntryValue::Number(9)), ("ram", text("4MiB"))];
    written.add_namespace(&nqn("a"), &entry).unwrap();
    let (come, gone) = lines(FILE, &written.files()[0].text);
    assert_eq!(
        (come, gone),
        (vec!["nsid = 9".into(), "ram = \"4MiB\"".into()], vec![])
    );
    let config = written.config().unwrap();
    let nsids = config.subsystems[0].namespaces.iter().map(|n| n.nsid);
    assert_eq!(nsids.collect::<Vec<_>>(), [1, 7, 9]);
    // Within brackets where the others are.
    written.add_namespace(&nqn("b"), &entry).unwrap();
    let namespaces = &written.config().unwrap().subsystems[1].namespaces;
    assert_eq!(namespaces.len(), 3, "{}", written.files()[0].text);
    let nobody = written.add_namespace(&nqn("c"), &entry).unwrap_err();
    assert!(matches!(nobody, EditError::NotThere(_)));
}

#[test]
fn what_is_taken_out_takes_its_own_comment_along_and_nothing_else() {
    let mut written = written();
    let of = |written: &Written, at: usize| written.config().unwrap().subsystems.swap_remove(at);
    let served = |written: &Written, at: usize| of(written, at).namespaces;
    let before = of(&written, 0);
    written.remove_namespace(&before, 1).unwrap();
    let (come, gone) = lines(FILE, &written.files()[0].text);
    let first = ["# Fast.".to_owned(), "ram = \"1MiB\"".to_owned()];
    assert_eq!((come, gone), (vec![], first.to_vec()));
    assert_eq!(served(&written, 0)[0].nsid, 7);
    written.remove_namespace(&of(&written, 0), 7).unwrap();
    assert!(
        !written.files()[0].text.contains("for measuring"),
        "{}",
        written.files()[0].text
    );
    assert!(written.files()[0].text.contains("# The second one."));
    assert_eq!(written.config().unwrap().subsystems[0].namespaces, []);
    // Of two without an NSID, by what they are on.
    written.remove_namespace(&of(&written, 1), 2).unwrap();
    assert_eq!(served(&written, 1).len(), 1, "{}", written.files()[0].text);
    assert_eq!(
        served(&written, 1)[0].backing,
        Backing::Ram {
            size_bytes: 2 << 20
        }
    );
    written.remove_subsystem(&nqn("b")).unwrap();
    assert!(
        written.files()[0]
            .text
            .ends_with("# Nothing below this line.\n")
    );
    assert!(!written.files()[0].text.contains("# The second one."));
    written.remove_subsystem(&nqn("a")).unwrap();
    assert_eq!(
        written.files()[0].text,
        "# What the disks of the house are served by.\n\n[target]\nlog = \"info\"    # more is too much\n\n[[listener]]\n\
         address = \"127.0.0.1\"\n\n# Nothing below this line.\n"
    );
    assert!(written.remove_subsystem(&nqn("a")).is_err());
}

#[test]
fn those_that_stay_keep_their_numbers() {
    let text = "[[listener]]\naddress = \"::1\"\n[[subsystem]]\nnqn = \"nqn.2026-11.org.example:a\"\n\
                allow_any_host = true\n[[subsystem.namespace]]\nram = \"1MiB\"\n[[subsystem.namespace]]\n\
                # the second\nram = \"1MiB\"\n[[subsystem.namespace]]\nram = \"2MiB\"\n";
    let mut written = Written::of_text(text.to_owned());
    // As the target has it, which writes all of them down.
    let mut served = written.config().unwrap().subsystems.swap_remove(0);
    served
        .namespaces
        .iter_mut()
        .for_each(|namespace| namespace.nsid_is_written = true);
    written.remove_namespace(&served, 1).unwrap();
    let left = written.config().unwrap().subsystems.swap_remove(0);
    assert_eq!(
        left.namespaces,
        served.namespaces[1..],
        "{}",
        written.files()[0].text
    );
    assert!(
        written.files()[0].text.contains("# the second\nram"),
        "{}",
        written.files()[0].text
    );
}

#[test]
fn hosts_come_and_go_line_by_line() {
    let mut written = written();
    let third = nqn("host-3");
    written.allow_host(&nqn("a"), &third).unwrap();
    let (come, gone) = lines(FILE, &written.files()[0].text);
    assert_eq!(come, ["    \"nqn.2026-11.org.example:host-3\","]);
    assert_eq!(gone, [""; 0]);
    let again = written
        .allow_host(&nqn("a"), &third)
        .unwrap_err()
        .to_string();
    assert!(
        again.contains("lets in nqn.2026-11.org.example:host-3 already"),
        "{again}"
    );
    for host in ["host-1", "host-2", "host-3"] {
        written.deny_host(&nqn("a"), &nqn(host)).unwrap();
    }
    let access = &written.config().unwrap().subsystems[0].access;
    assert_eq!(
        *access,
        Access::Hosts(Vec::new()),
        "{}",
        written.files()[0].text
    );
    assert!(written.deny_host(&nqn("a"), &third).is_err());
    let any = written
        .deny_host(&nqn("b"), &third)
        .unwrap_err()
        .to_string();
    assert!(any.contains("lets in any host"), "{any}");
}

#[test]
fn any_host_is_let_in_or_those_alone_that_are_allowed() {
    let mut written = written();
    let access =
        |written: &Written, at: usize| written.config().unwrap().subsystems[at].access.clone();
    assert!(written.allow_any_host(&nqn("b"), true).is_err(), "it is so");
    written.allow_any_host(&nqn("b"), false).unwrap();
    assert_eq!(access(&written, 1), Access::Hosts(Vec::new()));
    written.allow_host(&nqn("b"), &nqn("host-3")).unwrap();
    assert_eq!(access(&written, 1), Access::Hosts(vec![nqn("host-3")]));
    written.allow_any_host(&nqn("a"), true).unwrap();
    assert_eq!(access(&written, 0), Access::AnyHost);
    written.allow_any_host(&nqn("a"), false).unwrap();
    assert!(
        written.allow_any_host(&nqn("a"), false).is_err(),
        "it is so"
    );
}

#[test]
fn a_value_is_set_and_what_stands_behind_it_stays() {
    let mut written = written();
    written.set_target("log", &text("debug")).unwrap();
    assert!(
        written.files()[0]
            .text
            .contains("log = \"debug\"    # more is too much")
    );
    let mut bare = Written::of_text("[[listener]]\naddress = \"::1\"\n".to_owned());
    bare.set_target("log", &text("warn")).unwrap();
    assert!(
        bare.files()[0].text.contains("[target]\nlog = \"warn\"\n"),
        "{}",
        bare.files()[0].text
    );
    let config = written.config().unwrap();
    let served = &config.subsystems[0];
    let yes = EntryValue::Bool(true);
    written
        .set_namespace(served, 7, "read_only", Some(&yes))
        .unwrap();
    assert!(written.config().unwrap().subsystems[0].namespaces[1].read_only);
    written.set_namespace(served, 7, "read_only", None).unwrap();
    assert_eq!(written.files()[0].text.replace("debug", "info"), FILE);
}

#[test]
fn listeners_and_exports_are_found_by_what_they_say() {
    let mut written = written();
    let entry: Entry = vec![("address", text("::1")), ("port", EntryValue::Number(4421))];
    written.add_listener(&entry).unwrap();
    assert_eq!(written.config().unwrap().listeners.len(), 2);
    let (come, gone) = lines(FILE, &written.files()[0].text);
    assert_eq!(
        (come.len(), gone.len()),
        (2, 0),
        "{}",
        written.files()[0].text
    );
    written
        .remove_listener("127.0.0.1:4420".parse().unwrap())
        .unwrap();
    let left = &written.config().unwrap().listeners;
    assert_eq!(left[0].address, "[::1]:4421".parse().unwrap());
    assert!(
        written
            .remove_listener("127.0.0.1:4420".parse().unwrap())
            .is_err()
    );
    let clients = EntryValue::Texts(vec!["192.0.2.0/24".to_owned()]);
    let entry: Entry = vec![("path", text("/srv/a")), ("clients", clients)];
    written.add_export(&entry).unwrap();
    let nfs = written.config().unwrap().nfs.unwrap();
    assert_eq!(nfs.exports[0].client_path, "/srv/a");
    written.remove_export("/srv/a").unwrap();
    assert_eq!(
        written.config().unwrap().nfs,
        None,
        "{}",
        written.files()[0].text
    );
}

#[test]
fn every_text_stays_the_same_where_nothing_changes() {
    let mut written = written();
    written.edit(|_| Ok(())).unwrap();
    assert_eq!(written.files()[0].text, FILE);
}

/// What may be done, with numbers that choose among what there is.
#[derive(Clone, Debug)]
enum Step {
    AddSubsystem(u8),
    RemoveSubsystem(u8),
    AddNamespace(u8, u8),
    RemoveNamespace(u8, u8),
    Allow(u8, u8),
    Deny(u8, u8),
}

fn step() -> impl Strategy<Value = Step> {
    let number = 0..4_u8;
    prop_oneof![
        number.clone().prop_map(Step::AddSubsystem),
        number.clone().prop_map(Step::RemoveSubsystem),
        (number.clone(), number.clone()).prop_map(|(of, size)| Step::AddNamespace(of, size)),
        (number.clone(), number.clone()).prop_map(|(of, at)| Step::RemoveNamespace(of, at)),
        (number.clone(), number.clone()).prop_map(|(of, host)| Step::Allow(of, host)),
        (number.clone(), number).prop_map(|(of, host)| Step::Deny(of, host)),
    ]
}

/// Does the step to the text, and to what it says.
fn take(step: &Step, written: &mut Written, config: &mut Config) {
    let place = |config: &Config, of: u8| {
        let mut all = config.subsystems.iter();
        all.position(|subsystem| subsystem.nqn == nqn(&format!("s{of}")))
    };
    match *step {
        Step::AddSubsystem(of) if place(config, of).is_none() => {
            let name = nqn(&format!("s{of}"));
            let hosts = EntryValue::Texts(Vec::new());
            let entry: Entry = vec![("nqn", text(name.as_str())), ("allowed_hosts", hosts)];
            written.add_subsystem(&entry).unwrap();
            config
                .subsystems
                .push(written.config().unwrap().subsystems.pop().unwrap());
        }
        Step::RemoveSubsystem(of) => {
            let done = written.remove_subsystem(&nqn(&format!("s{of}")));
            assert_eq!(done.is_ok(), place(config, of).is_some());
            config
                .subsystems
                .retain(|subsystem| subsystem.nqn != nqn(&format!("s{of}")));
        }
        Step::AddNamespace(of, size) => {
            let Some(at) = place(config, of) else { return };
            let namespaces = &mut config.subsystems[at].namespaces;
            let nsid = (1..)
                .find(|nsid| namespaces.iter().all(|n| n.nsid != *nsid))
                .unwrap();
            let size = format!("{}MiB", size + 1);
            let entry: Entry = vec![("nsid", EntryValue::Number(nsid)), ("ram", text(&size))];
            written
                .add_namespace(&nqn(&format!("s{of}")), &entry)
                .unwrap();
            let now = written.config().unwrap().subsystems[at].namespaces.clone();
            namespaces.push(now.into_iter().find(|n| n.nsid == nsid).unwrap());
            namespaces.sort_by_key(|n| n.nsid);
        }
        Step::RemoveNamespace(of, at) => {
            let Some(place) = place(config, of) else {
                return;
            };
            if usize::from(at) < config.subsystems[place].namespaces.len() {
                let before = config.subsystems[place].clone();
                let namespaces = &mut config.subsystems[place].namespaces;
                let gone = namespaces.remove(usize::from(at));
                written.remove_namespace(&before, gone.nsid).unwrap();
            }
        }
        Step::Allow(of, host) | Step::Deny(of, host) => {
            let Some(place) = place(config, of) else {
                return;
            };
            let (name, host) = (nqn(&format!("s{of}")), nqn(&format!("h{host}")));
            let Access::Hosts(hosts) = &mut config.subsystems[place].access else {
                return;
            };
            let is_there = hosts.contains(&host);
            if matches!(step, Step::Allow(..)) {
                assert_eq!(written.allow_host(&name, &host).is_ok(), !is_there);
                if !is_there {
                    hosts.push(host);
                }
            } else {
                assert_eq!(written.deny_host(&name, &host).is_ok(), is_there);
                hosts.retain(|other| *other != host);
            }
        }
        Step::AddSubsystem(_) => {}
    }
}

proptest! {
    /// The text says at each step what was done to what it said, and keeps the lines of the file.
    #[test]
    fn the_text_says_what_is_served_whatever_was_changed(steps in prop::collection::vec(step(), 0..24)) {
        let mut written = written();
        let mut config = written.config().unwrap();
        for step in &steps {
            take(step, &mut written, &mut config);
            prop_assert_eq!(&written.config().unwrap(), &config, "{:?}\n{}", step, written.files()[0].text);
        }
        for line in FILE.lines() {
            prop_assert!(written.files()[0].text.lines().any(|other| other == line), "{}\n{}", line, written.files()[0].text);
        }
    }
}
