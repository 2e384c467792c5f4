#pragma once

namespace properties {

/// Has `callback` called when a sanitizer's report or a fatal signal is about to end the process, for a last word about
/// the case at hand. It runs in a signal handler: it may write to a file descriptor and end the process, little more.
void call_on_death(void (*callback)());

}  // namespace properties
