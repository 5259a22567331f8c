//! `docs/operations.md`: its table of sizes is what the configuration enforces, its configurations
//! are taken, and what is imported becomes what stands beside it.

use std::fs;
use std::path::Path;

use capstan_config::import::nvmet;
use capstan_config::{Config, Size};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn guide() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations.md");
    fs::read_to_string(path).unwrap()
}

/// The blocks of a language.
fn blocks(language: &str) -> Vec<String> {
    let text = guide();
    let begin = format!("```{language}\n");
    let behind = text.split(&begin).skip(1);
    let blocks = behind.map(|rest| rest.split("```").next().unwrap().to_owned());
    blocks.collect()
}

fn sized(budget_bytes: u64, reactors: usize, depth: u16) -> Config {
    let text = format!(
        "[target]\nmemory_budget = {budget_bytes}\nreactors = {reactors}\n\
         [queues]\ndepth_max = {depth}\n\
         [[listener]]\naddress = \"192.0.2.10\"\n\
         [[subsystem]]\nnqn = \"nqn.2026-11.com.example:disk\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\npath = \"/dev/vdb\"\n"
    );
    Config::from_toml(&text).unwrap()
}

/// A row of the table: what a budget buys.
fn row(budget_bytes: u64, reactors: usize, depth: u16) -> String {
    let config = sized(budget_bytes, reactors, depth);
    let plan = config.memory_plan(reactors).unwrap();
    let most = u64::from(config.target.hosts_max);
    let hosts = [1, 4, 16, 64].map(|io_queues| match plan.hosts(io_queues) {
        hosts if hosts >= most => format!("{most} (`hosts_max`)"),
        hosts => hosts.to_string(),
    });
    format!(
        "| {} | {reactors} | {depth} | {} | {} |",
        Size(budget_bytes),
        Size(plan.data_bytes_per_reactor),
        hosts.join(" | ")
    )
}

#[test]
fn the_table_of_sizes_is_what_is_enforced() {
    let rows: Vec<_> = [
        (64 * MIB, 2, 128),
        (256 * MIB, 2, 128),
        (256 * MIB, 8, 128),
        (256 * MIB, 2, 32),
        (GIB, 8, 128),
        (4 * GIB, 16, 128),
        (16 * GIB, 32, 128),
        (16 * GIB, 32, 1024),
    ]
    .into_iter()
    .map(|(budget_bytes, reactors, depth)| row(budget_bytes, reactors, depth))
    .collect();
    let text = guide();
    let (_, table) = text.split_once("| `memory_budget` | reactors |").unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    let written: Vec<_> = table.lines().skip(2).collect();
    assert_eq!(
        written,
        rows,
        "docs/operations.md, expected:\n{}",
        rows.join("\n")
    );
    // What else the document says of the default.
    let queue = sized(256 * MIB, 2, 128).queues.queue_bytes(128);
    let words = format!("An I/O queue of 128 entries takes {}", Size(queue));
    assert!(text.contains(&words), "{words}");
}

#[test]
fn its_configurations_are_taken() {
    let blocks = blocks("toml");
    assert!(blocks.len() >= 3, "{blocks:#?}");
    for block in blocks {
        // A part of a file, beside what a file has to have.
        let whole = match block.contains("[[subsystem]]") {
            true => block.clone(),
            false => format!(
                "{block}\n[[subsystem]]\nnqn = \"nqn.2026-11.com.example:disk\"\nallow_any_host = true\n"
            ),
        };
        let taken = Config::from_toml(&whole);
        assert!(taken.is_ok(), "{}\n{block}", taken.unwrap_err());
    }
}

#[test]
fn what_is_imported_becomes_what_stands_beside_it() {
    let [json] = &blocks("json")[..] else {
        panic!("one saved configuration of nvmet")
    };
    let imported = nvmet(json.as_bytes()).unwrap();
    let is_there = blocks("toml").contains(&imported.toml);
    assert!(is_there, "docs/operations.md, expected:\n{}", imported.toml);
    for note in imported.notes {
        assert!(guide().contains(&note.to_string()), "{note}");
    }
}

/// Every `.rs` file below a folder, with texts that go on in the next line in one piece.
fn sources(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = fs::read_to_string(&path).unwrap();
            let mut pieces = source.split("\\\n");
            text.push_str(pieces.next().unwrap());
            pieces.for_each(|piece| text.push_str(piece.trim_start()));
        }
    }
}

/// Messages are quoted as the programs say them; what differs is `…`.
#[test]
fn messages_that_are_quoted_are_said() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut said = String::new();
    for name in [
        "config",
        "control",
        "doctor",
        "rdma",
        "storage",
        "subsystem",
        "target",
    ] {
        sources(&root.join(name).join("src"), &mut said);
    }
    let text = guide();
    let (_, table) = text.split_once("| what is seen |").unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `"));
    let quotes: Vec<&str> = rows.map(|row| row.split('`').next().unwrap()).collect();
    assert!(quotes.len() >= 12, "{quotes:#?}");
    for quote in quotes {
        for piece in quote.split('…').map(str::trim) {
            assert!(said.contains(piece), "`{quote}`: {piece}");
        }
    }
}
