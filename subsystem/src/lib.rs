//! NVM subsystem, controller and queues as a sans-I/O state machine.
