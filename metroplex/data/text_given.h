// Text where a dataset is wanted: a common slip of a first run.
#pragma once

#include <string>

#include "config/data.h"
#include "files/file_system.h"

namespace metroplex::data {

// Where `prefix` is no dataset but a file or folder of text: what to run instead, as one can paste it, with the
// tokenizer of `config`. Empty otherwise.
std::string way_from_text(files::FileSystem& disk, const std::string& prefix, const config::Data& config);

}  // namespace metroplex::data
