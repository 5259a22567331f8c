//! One polling thread per core that sleeps when idle.
