// What a call is refused with.
#pragma once

#include <string>

#include "base/error.h"

namespace metroplex::test {

// The text of the base::Error that `body` throws; "" when it throws none.
template <class Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const base::Error& error) { return error.what(); }
  return "";
}

}  // namespace metroplex::test
