// Detects text given instead of a dataset, a common mistake in a first run.
#pragma once

#include <string>

#include "config/config.h"
#include "files/file_system.h"

namespace metroplex::data {

// If `prefix` is not a dataset but a file or folder of text: the commands to run instead, ready to paste, with the
// tokenizer of `config`. Else empty.
std::string way_from_text(files::FileSystem& disk, const std::string& prefix, const config::Data& config);

}  // namespace metroplex::data
