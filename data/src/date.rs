//! Dates and times as text.

use jiff::civil::Date;
use jiff::{Timestamp, Unit, Zoned};

/// Today's date in the local time zone, as `YYYY-MM-DD`.
pub fn today() -> String {
    Zoned::now().date().to_string()
}

/// The current time in UTC, as `YYYY-MM-DDThh:mm:ssZ`.
pub fn now() -> String {
    let now = Timestamp::now();
    // Rounding fails only at the maximum timestamp.
    now.round(Unit::Second).unwrap_or(now).to_string()
}

/// Whether a text is a valid date, written as `YYYY-MM-DD`.
pub fn is_date(text: &str) -> bool {
    // The parser also accepts times and shorter forms; printing gives the only accepted form.
    text.parse::<Date>().is_ok_and(|date| date.to_string() == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_valid_dates_are_accepted() {
        assert!(is_date(&today()) && is_date("2024-02-29"));
        for wrong in ["2023-02-29", "20240229", "2024-02-29T10:00", "2024-2-9", "", "today"] {
            assert!(!is_date(wrong), "{wrong}");
        }
    }
}
