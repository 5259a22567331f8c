//! The `capstan-target` command.

use std::ffi::OsString;
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use capstan_config::{
    Config, MANUAL_NAME, Problems, ProviderChoice, QuickDirectory, QuickExport, Transports,
    Written, first_of, manual, word_of,
};
use capstan_doctor::{Machine, Summary, Verdict};
use capstan_nvme_proto::text::Shown;
use capstan_reactor::raise_descriptor_limit;
use capstan_target::cli::complete;
use capstan_target::cli::{Cli, Command, Doctor, Output, Provider, Source, Transport};
use capstan_target::signals::{Held, outlive_file_size_limit};
use capstan_target::{
    absent, answers, device_access, doctor, identities, import, lba_size, log, lost, operate, room,
    serve, space, state,
};
use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser as _};
use nix::errno::Errno;

/// More than any configuration has that was written for use.
const NOTES_TOLD: usize = 1000;

fn main() -> ExitCode {
    complete::answer_shell();
    if let Err(error) = outlive_file_size_limit() {
        let _ = writeln!(
            io::stderr(),
            "capstan-target: SIGXFSZ cannot be blocked: {error}"
        );
        return ExitCode::FAILURE;
    }
    let words: Vec<_> = std::env::args_os().collect();
    let parsed = Cli::try_parse_from(&words).map_err(|error| {
        // What is wrong is told of words that a terminal can show.
        let again = Cli::try_parse_from(words.iter().map(shown)).err();
        again
            .filter(|again| again.kind() == error.kind())
            .unwrap_or(error)
    });
    let parsed = parsed.and_then(|cli| cli.check_effects().map(|()| cli));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => return refused(&error),
    };
    match run_command(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let told = format!("{error:#}");
            let lacks = told.contains("thread") && error.chain().any(is_refused);
            let why = lacks.then(|| format!("; {}", room::no_thread()));
            // There is nowhere left to tell that stderr is gone.
            let _ = writeln!(
                io::stderr(),
                "capstan-target: {told}{}",
                why.unwrap_or_default()
            );
            ExitCode::FAILURE
        }
    }
}

/// A word with what a terminal does not show escaped.
fn shown(word: &OsString) -> OsString {
    Shown(&word.to_string_lossy()).to_string().into()
}

/// EAGAIN: of a thread, that there are as many as there may be (pthread_create(3)).
fn is_refused(cause: &(dyn std::error::Error + 'static)) -> bool {
    let io = cause.downcast_ref::<io::Error>();
    io.is_some_and(|error| error.raw_os_error() == Some(Errno::EAGAIN as i32))
}

/// Says why a command line is not taken (or shows the help that was asked for). A wrong value ends
/// with the same exit status wherever it is found out.
fn refused(error: &clap::Error) -> ExitCode {
    // There is nowhere left to tell that stderr is gone.
    let _ = error.print();
    match error.kind() {
        ErrorKind::ValueValidation | ErrorKind::InvalidValue => ExitCode::FAILURE,
        _ => ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(u8::MAX)),
    }
}

/// Prints lines on stdout. Its reader may go away, as `head` does: what is done goes on.
fn print(text: &str) -> anyhow::Result<()> {
    match writeln!(io::stdout(), "{text}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed.context("writing to stdout"),
    }
}

fn run_command(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Serve(options) => run(&options.source, options.control_socket.as_deref()),
        // These serve nobody: a signal may end them where they are.
        Command::Check { config } => check(&config),
        Command::Doctor(options) => examine(&options),
        Command::ClearLostWrites { paths } => clear_lost_writes(&paths),
        Command::Import(options) => {
            let of_it = import::run(&options)?;
            tell(&of_it.notes);
            of_it.toml.map_or(Ok(()), |toml| print(toml.trim_end()))
        }
        Command::DeviceAccess(options) => {
            let done = device_access::run(&options)?;
            tell(&done.notes);
            done.text.map_or(Ok(()), |text| print(text.trim_end()))
        }
        Command::Man { to } => write_manual(&to).with_context(|| {
            format!(
                "{}: expected a folder that this user can write to; `mkdir --parents {}` makes one",
                to.display(),
                word_of(&to)
            )
        }),
        Command::Completions { shell } => print(complete::registration(shell)?.trim_end()),
        Command::Open { paths } => Ok(answers::open(&paths)?),
        Command::Operate(operation) => operate::run(operation, print),
    }
}

/// Says what is to be known beside what is on stdout, which is complete without it.
fn tell(notes: &[impl Display]) {
    for note in notes.iter().take(NOTES_TOLD) {
        let _ = writeln!(io::stderr(), "capstan-target: {note}");
    }
    if let Some(more) = notes.len().checked_sub(NOTES_TOLD).filter(|more| *more > 0) {
        let _ = writeln!(io::stderr(), "capstan-target: and {more} more");
    }
}

/// What the page of the program has behind its commands.
const SECTIONS: &str = include_str!("../man/sections.man");

/// The pages of the commands, and that of the configuration file in the folder of its section.
fn write_manual(to: &Path) -> io::Result<()> {
    clap_mangen::generate_to(Cli::command(), to)?;
    let page = to.join("capstan-target.1");
    let mut page = OpenOptions::new().append(true).open(page)?;
    page.write_all(SECTIONS.as_bytes())?;
    let folder = match to.file_name() {
        Some(name) if name == "man1" => to.with_file_name("man5"),
        _ => to.to_owned(),
    };
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join(MANUAL_NAME), manual())
}

fn run(source: &Source, control_socket: Option<&Path>) -> anyhow::Result<()> {
    // Before there is anything that a signal would cut short.
    let held = Held::hold().context("starting the thread that holds signals during the start")?;
    let (mut config, written) = written(source)?;
    room::check_threads(&config)?;
    let last_lines =
        log::start(config.target.log.as_str()).context("starting the threads of the log")?;
    raise_limits();
    for line in answers::take_out_silent_exports(&mut config) {
        tracing::error!("{line}");
    }
    // Options are written by hand, and a mistake in them is told at once.
    if written.path().is_some() {
        for line in absent::take_out(&mut config) {
            tracing::error!("{line}");
        }
    }
    let numbered = identities::numbered(&config);
    for warning in first_of(&room::check(&numbered, in_words_of(source))?) {
        tracing::warn!("{warning}");
    }
    serve::serve(&config, written, control_socket, held, &last_lines)
}

/// A configuration, and the text that says it.
fn written(source: &Source) -> anyhow::Result<(Config, Written)> {
    let Some(file) = &source.config else {
        let config = quick(source)?;
        let text = Written::of_text(config.to_toml());
        return Ok((config, text));
    };
    let written = Written::read(file)?;
    Ok((written.config()?, written))
}

/// Names the options of a quick export where a configuration file would have fields.
fn in_words_of(source: &Source) -> impl FnOnce(Problems) -> Problems {
    let is_quick = source.is_quick();
    move |problems| {
        if is_quick {
            problems.in_options()
        } else {
            problems
        }
    }
}

/// Before anything is compared with a limit. Where that fails, the comparison says what is missing.
fn raise_limits() {
    if let Err(error) = raise_descriptor_limit() {
        tracing::warn!(%error, "the limit of open files stays as it is (`ulimit -n`)");
    }
}

fn config(source: &Source) -> anyhow::Result<Config> {
    match &source.config {
        Some(file) => Ok(Config::from_file(file)?),
        None => quick(source),
    }
}

fn quick(options: &Source) -> anyhow::Result<Config> {
    let listen = options.listen.clone();
    let listen = listen.context("--listen is needed with --export and --export-dir")?;
    let provider = match options.provider {
        Provider::Auto => ProviderChoice::Auto,
        Provider::Verbs => ProviderChoice::Verbs,
        Provider::Iwarp => ProviderChoice::Iwarp,
    };
    let transports = transports(&options.transports);
    if let Some(path) = &options.export_dir {
        return Ok(Config::quick_directory(&QuickDirectory {
            path: path.clone(),
            listen,
            clients: options.clients.clone(),
            provider,
            transports,
            read_only: options.read_only,
        })?);
    }
    let export = options.export.as_ref();
    let export = QuickExport {
        backing: export
            .context("--export, --export-dir or --config is needed")?
            .clone(),
        lba: options.lba,
        listen,
        nqn: options.nqn.clone(),
        provider,
        transports,
        allow_any_host: options.allow_any_host,
        read_only: options.read_only,
    };
    let mut config = Config::quick(&export, &Config::machine_id())?;
    config.target.shared_receive_queue = options.shared_receive_queue;
    Ok(config)
}

fn transports(named: &[Transport]) -> Transports {
    if named.is_empty() {
        return Transports::default();
    }
    let has = |transport| named.contains(&transport);
    Transports::named(has(Transport::Rdma), has(Transport::Tcp))
}

fn check(file: &Path) -> anyhow::Result<()> {
    let mut config = Config::from_file(file)?;
    raise_limits();
    let (mut warnings, mut errors) = (Vec::new(), Vec::new());
    let silent = answers::take_out_silent(&mut config);
    errors.extend(silent.into_iter().map(anyhow::Error::msg));
    // A start goes on without them.
    warnings.extend(answers::take_out_silent_exports(&mut config));
    // First, as what is said of a namespace has its NSID.
    let mut of_media = Vec::new();
    let numbered = identities::check(&config, &mut of_media);
    let (config, unnumbered) = match numbered {
        Ok(numbered) => (numbered, None),
        Err(error) => (identities::numbered(&config), Some(error)),
    };
    let found = room::compare(&config, std::convert::identity);
    warnings.extend(found.warnings);
    errors.extend(found.errors.into_iter().map(anyhow::Error::msg));
    warnings.extend(room::locked_memory(&config));
    errors.extend(unnumbered);
    warnings.extend(of_media);
    warnings.extend(state::warnings(&config));
    match lba_size::check(&config) {
        Ok(found) => warnings.extend(found),
        Err(error) => errors.push(error),
    }
    warnings.extend(space::warnings(&config));
    warnings.extend(lost::warnings(&config));
    warnings.extend(device_access::warnings(&config, file));
    let machine = Machine::here();
    let listeners = doctor::Listen::all(&machine, &config);
    warnings.extend(listeners.iter().filter_map(doctor::Listen::port_in_use));
    for warning in first_of(&warnings) {
        print(&format!("warning: {warning}"))?;
    }
    for line in listeners.iter().filter_map(doctor::Listen::serves) {
        print(&line)?;
    }
    if !errors.is_empty() {
        let errors: Vec<_> = errors.iter().map(|error| format!("{error:#}")).collect();
        anyhow::bail!("{}", errors.join("\n"));
    }
    let name = match file.to_str() {
        Some("-") => "stdin".into(),
        _ => file.display().to_string(),
    };
    print(&format!("{name}: ok, {} warning(s)", warnings.len()))
}

fn clear_lost_writes(paths: &[PathBuf]) -> anyhow::Result<()> {
    for line in lost::clear(paths)? {
        print(&line)?;
    }
    Ok(())
}

fn examine(options: &Doctor) -> anyhow::Result<()> {
    let source = &options.source;
    let is_given = source.config.is_some() || source.is_quick();
    raise_limits();
    let mut config = is_given.then(|| config(source).map_err(|error| format!("{error:#}")));
    let (silent, absent) = match &mut config {
        Some(Ok(config)) => (
            answers::take_out_silent(config),
            answers::take_out_silent_exports(config),
        ),
        Some(Err(_)) | None => (Vec::new(), Vec::new()),
    };
    let config = config.as_ref().map(Result::as_ref);
    let written = match source.is_quick() {
        true => doctor::Written::InOptions,
        false => doctor::Written::InFile,
    };
    let mut checks = doctor::checks(&Machine::here(), config, written);
    if let (Some(Ok(config)), Some(file)) = (config, &source.config) {
        checks.extend(device_access::checks(config, file));
    }
    checks.extend(doctor::of_silent(silent, Verdict::Error));
    checks.extend(doctor::of_silent(absent, Verdict::Warning));
    match options.output {
        Output::Normal => print(&capstan_doctor::text(&checks))?,
        Output::Json => print(&format!("{:#}", capstan_doctor::json(&checks)))?,
    }
    match Summary::of(&checks).errors {
        0 => Ok(()),
        errors => anyhow::bail!("{errors} of {} checks failed", checks.len()),
    }
}
