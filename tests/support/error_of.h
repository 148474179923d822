// Returns the message of an expected error.
#pragma once

#include <string>

#include "base/error.h"

namespace metroplex::test {

// The message of the base::Error that `body` throws; "" if it throws none.
template <class Body>
std::string catch_error(const Body& body) {
  try {
    body();
  } catch (const base::Error& error) { return error.what(); }
  return "";
}

}  // namespace metroplex::test
