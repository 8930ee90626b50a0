//! Behaviour through the public API, a module a theme.
#![allow(missing_docs)]

mod broadcast;
mod browse;
mod close;
mod driven;
mod durability;
mod files;
mod filters;
mod group_settings;
mod groups;
mod hand_over;
mod hooks;
mod lifecycle;
mod limits;
mod look_up;
mod offset_admin;
mod offsets;
mod own_offsets;
mod placement;
mod producer;
mod pull;
mod push;
mod rebalance;
mod recovery;
mod retention;
mod seek;
mod service_state;
mod simulated;
mod sizes;
mod sql;
mod start;
mod stuck;
mod subscriptions;
mod support;
mod topics;
mod wake_up;
