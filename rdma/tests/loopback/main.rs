//! What only the `loopback` provider has: faults by value, virtual time, equal runs for equal
//! seeds.

mod ends;
mod faults;
mod simulation;
