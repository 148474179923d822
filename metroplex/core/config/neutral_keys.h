// Keys of section model that do not change the function of the weights.
#pragma once

#include <string>

namespace metroplex::config {

// True for keys of initialization, dropout, vocabulary padding, MoE balancing and dispatch.
bool is_neutral_key(const std::string& name);

}  // namespace metroplex::config
