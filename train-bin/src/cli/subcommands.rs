//! A list of subcommands.

/// The enum of some subcommands and its dispatch, from one list: `Name(module::Arguments)` is run by `module::run`.
macro_rules! subcommands {
    ($(#[$of_enum:meta])* $list:ident { $($name:ident($module:ident::$args:ident),)+ }) => {
        $(#[$of_enum])*
        #[derive(Debug, Clone, PartialEq, clap::Subcommand)]
        pub(crate) enum $list { $($name(Box<$module::$args>),)+ }

        impl $list {
            pub(crate) fn run(&self) -> anyhow::Result<std::process::ExitCode> {
                use std::process::Termination;
                match self { $(Self::$name(args) => Ok($module::run(args)?.report()),)+ }
            }
        }
    };
}
