// Stands for the script of the console in a build without it.
"use strict";
