//! Duplicate rows: exact ones by a hash, near-duplicates by MinHash signatures and locality-sensitive hashing.

mod index;
mod minhash;
mod part;
mod places;

pub(crate) use index::{ExactIndex, NearIndex};
pub(crate) use minhash::{Signature, signature};
pub use part::Part;
pub(crate) use places::Places;
