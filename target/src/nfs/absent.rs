//! Exports whose file systems did not answer when the target started, or at a reload: they are
//! asked again until they do.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use capstan_config::Nfs;

use crate::answers;
use crate::reload::Served;

/// How often absent exports are tried again: short, so that clients go on soon after a repair.
const EVERY: Duration = Duration::from_secs(5);

/// Starts a thread that asks, where there is something to be asked for and none that does so. It
/// ends when all are served, or the target does not serve any more.
///
/// # Errors
/// There is no thread.
pub(crate) fn ask_again(all: &Arc<Mutex<Served>>, served: &mut Served) -> io::Result<()> {
    if !served.begins_asking() {
        return Ok(());
    }
    let all = Arc::downgrade(all);
    let mut told = String::new();
    let work = move || {
        loop {
            thread::sleep(EVERY);
            let Some(served) = all.upgrade() else { return };
            let Some(nfs) = locked(&served).exports_to_ask() else {
                return;
            };
            ask(&served, &nfs, &mut told);
        }
    };
    let started = thread::Builder::new().name("nfs-absent".into()).spawn(work);
    started.map(drop)
}

fn locked(served: &Mutex<Served>) -> MutexGuard<'_, Served> {
    served.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves those that answer now. What keeps one from being served is told once.
fn ask(served: &Mutex<Served>, nfs: &Nfs, told: &mut String) {
    let paths: Vec<PathBuf> = nfs.absent.iter().map(|of| of.path.clone()).collect();
    let answers = answers::answering(&paths);
    let answering = nfs.absent.iter().zip(answers);
    let answering = answering.filter(|(_, answers)| *answers);
    for (export, _) in answering {
        if let Err(error) = locked(served).take_in(export) {
            let words = format!("export {}: {error:#}", export.client_path);
            if *told != words {
                tracing::error!("{words}; it is tried again every {} s", EVERY.as_secs());
                *told = words;
            }
        }
    }
}
