//! What the kernel's io_uring offers, without an engine.

use io_uring::opcode;

use super::EngineError;
use super::setup::{self, Mode};

/// Entries of the ring that is made to find out: few, so that it costs nothing.
const ENTRIES: u32 = 8;

/// Which of the things that an [`Engine`](crate::Engine) uses the kernel has. Without the missing
/// ones it works, but slower; only the operations of [`Capabilities::missing`] fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Completions are processed when the reactor asks for them (Linux 6.1).
    pub deferred_completions: bool,
    /// The submission queue needs no index array (Linux 6.6).
    pub no_index_array: bool,
    /// Slabs can be registered once instead of being mapped per operation (Linux 5.19).
    pub fixed_buffers: bool,
    /// Files can be registered (Linux 5.19).
    pub fixed_files: bool,
    /// Operations of the engine that the kernel does not have, by their names.
    pub missing: Vec<&'static str>,
}

impl Capabilities {
    /// Makes a small ring, queries it, and closes it.
    ///
    /// # Errors
    /// [`EngineError::Setup`] when the kernel refuses to make one, with what to do about it.
    pub fn probe() -> Result<Self, EngineError> {
        let (ring, mode) = setup::ring(ENTRIES, ENTRIES, Mode::DeferredNoArray)?;
        let submitter = ring.submitter();
        let mut probe = io_uring::Probe::new();
        let operations = [
            ("READ", opcode::Read::CODE),
            ("WRITE", opcode::Write::CODE),
            ("READ_FIXED", opcode::ReadFixed::CODE),
            ("WRITE_FIXED", opcode::WriteFixed::CODE),
            ("FSYNC", opcode::Fsync::CODE),
            ("FALLOCATE", opcode::Fallocate::CODE),
        ];
        // A kernel that cannot be asked (before 5.6) has none of the operations that the probe is
        // for.
        let missing = match submitter.register_probe(&mut probe) {
            Ok(()) => operations
                .iter()
                .filter(|(_, code)| !probe.is_supported(*code))
                .map(|(name, _)| *name)
                .collect(),
            Err(_) => operations.iter().map(|(name, _)| *name).collect(),
        };
        Ok(Self {
            deferred_completions: mode <= Mode::Deferred,
            no_index_array: mode == Mode::DeferredNoArray,
            fixed_buffers: submitter.register_buffers_sparse(1).is_ok(),
            fixed_files: submitter.register_files_sparse(1).is_ok(),
            missing,
        })
    }
}

/// Makes rings of so many entries and operations in flight all at once, and closes them: whether
/// there is room for them now.
///
/// # Errors
/// [`EngineError::Setup`] when the kernel refuses to make one, with what to do about it.
pub fn try_rings(sizes: impl IntoIterator<Item = (u32, u32)>) -> Result<(), EngineError> {
    let made = sizes
        .into_iter()
        .map(|(entries, in_flight_max)| setup::ring(entries, in_flight_max, Mode::DeferredNoArray));
    made.collect::<Result<Vec<_>, _>>().map(drop)
}

#[cfg(test)]
mod tests {
    use super::Capabilities;
    use crate::{Engine, EngineConfig};

    #[test]
    fn what_makes_an_engine_is_there() {
        let capabilities = Capabilities::probe().unwrap();
        assert_eq!(capabilities.missing, [""; 0]);
        // Removing the index array came after deferring completions.
        assert!(capabilities.deferred_completions || !capabilities.no_index_array);
        assert!(Engine::new(&EngineConfig::default()).is_ok());
    }
}
