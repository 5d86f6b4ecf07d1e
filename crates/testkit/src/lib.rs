//! Scripted providers, microphones, speakers and tools.
