//! Names of the values of [`clap::ValueEnum`] types.

use clap::ValueEnum;

use crate::error::DataError;
use crate::nearest::nearest;

/// The value's name, as written in configurations and on the command line.
pub(crate) fn name<T: ValueEnum>(value: &T) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// The first line of the value's help text.
pub(crate) fn help<T: ValueEnum>(value: &T) -> String {
    let value = value.to_possible_value();
    value.as_ref().and_then(|value| value.get_help()).map(ToString::to_string).unwrap_or_default()
}

/// The value with this name; `key` is the setting that error messages name.
///
/// # Errors
/// A name that no value has.
pub(crate) fn parse<T: ValueEnum>(key: &str, name: &str) -> Result<T, DataError> {
    T::from_str(name, false).map_err(|_| {
        let names: Vec<String> = T::value_variants().iter().map(self::name).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).filter(|n| !n.is_empty()).collect();
        DataError::Setting {
            key: key.to_owned(),
            expected: format!("one of {}", names.join(", ")),
            found: name.to_owned(),
            nearest: nearest(name, names),
        }
    })
}
