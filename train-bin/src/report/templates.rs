//! The templates of the pages.

use minijinja::{AutoEscape, Environment};

/// The templates; all values are escaped.
pub(super) fn environment() -> Result<Environment<'static>, minijinja::Error> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.add_template("page.html", include_str!("page.html"))?;
    environment.add_template("frame.html", include_str!("frame.html"))?;
    environment.add_template("sweep.html", include_str!("sweep.html"))?;
    environment.add_template("chart.html", include_str!("chart.html"))?;
    environment
        .add_global("style", minijinja::Value::from_safe_string(include_str!("page.css").into()));
    environment
        .add_global("script", minijinja::Value::from_safe_string(include_str!("page.js").into()));
    Ok(environment)
}
