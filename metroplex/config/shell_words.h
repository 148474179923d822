// Enough of a shell to read the launch script of a training run: quotes, comments, backslash-newlines, variables and
// arrays that the file itself sets, ${NAME:-default}. Nothing is ever executed, so what an if decides is not known.
#pragma once

#include <string>
#include <vector>

namespace metroplex::config {

// The words behind the program of the one training command in `text`: what follows its first word that ends in .py,
// or all the words when the text is flags alone. A word that needs something the text does not set ($1, an unset
// variable, $(...)) is refused with base::Error("config") only when the command uses it. `source` names the text.
std::vector<std::string> training_words(const std::string& text, const std::string& source);

}  // namespace metroplex::config
