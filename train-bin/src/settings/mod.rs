//! Settings: where their values come from, and how one is declared.
//!
//! A section of the configuration is read by one function from a [`Reader`]. Each line of it declares a setting (name, type,
//! meaning, range, default, what changing it does to a resumed run) and gives its value:
//!
//! ```text
//! neftune_alpha: s.number("neftune_alpha", "Scale of the noise on embeddings (NEFTune)")
//!     .at_least(0.0)
//!     .zero_is_off()
//!     .also_called(&["neftune_noise_alpha"])
//!     .or_off(None),
//! ```
//!
//! From that one declaration follow the list of keys and the nearest one to a misspelling, the messages for wrong types and
//! ranges (all at once), what a resumed run may change, the flags of the command line, the reference in
//! `docs/configuration.md`, the JSON Schema and the commented starting file ([`mod@reference`]). This room knows none of the
//! settings; [`config`](crate::config) declares them.

mod error;
mod layers;
mod paths;
mod reader;
pub mod reference;
mod setting;
mod types;

pub use error::{ConfigError, Fault, FaultKind, Origin};
pub use layers::{Layers, Override, flag_value};
pub use paths::{absolute, shown};
pub use reader::{Declared, Reader};
pub use setting::{Effect, Range, Setting, SettingKind};
pub use types::{Choice, Pair, Refusal, SettingType};
