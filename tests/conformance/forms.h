// The required keys of a case in each list of a vector file, as data. A case of another form (a missing key, an
// unread key) fails by its name. It is removed, so that the runners process only complete cases.
#pragma once

#include <string>

#include "conformance/report.h"

namespace metroplex::conformance {

// The keys of a case, separated by spaces; a name that ends in * matches all keys with that prefix. A case that
// records a rejection (see `refusal`) may omit the results.
struct Form {
  const char* path;  // "schedules.configs": every object of that list, or that object
  const char* given;
  const char* result;
  const char* optional;
};

// `file` without its malformed cases, which become failures of `report`. In cases that record a rejection, missing
// results become null. `stem` names the file in the table of forms.
Json well_formed(const std::string& stem, const Json& file, Report& report);

}  // namespace metroplex::conformance
