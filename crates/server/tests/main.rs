//! The server over real sockets, on stub models: every endpoint, every refusal, and what happens when somebody leaves.

#[cfg(test)]
mod agents;
#[cfg(test)]
mod caching;
#[cfg(test)]
mod conversations;
#[cfg(test)]
mod dialects;
#[cfg(test)]
mod http;
#[cfg(test)]
mod models;
#[cfg(test)]
mod running;
#[cfg(test)]
mod support;
